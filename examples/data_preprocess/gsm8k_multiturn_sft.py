"""Turn GSM8K into conversations for SFT: the same as `python -m verl_data.processors.gsm8k_multiturn_sft`."""

import sys

from verl_data.processors.gsm8k_multiturn_sft import main

if __name__ == "__main__":
    sys.exit(main())
