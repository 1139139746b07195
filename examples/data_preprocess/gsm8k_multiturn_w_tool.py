"""GSM8K with a tool that scores answers: `python -m verl_data.processors.gsm8k_multiturn_w_tool`."""

import sys

from verl_data.processors.gsm8k_multiturn_w_tool import main

if __name__ == "__main__":
    sys.exit(main())
