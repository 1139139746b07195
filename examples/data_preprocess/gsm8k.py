"""Turn GSM8K into RL rows: the same as `python -m verl_data.processors.gsm8k`."""

import sys

from verl_data.processors.gsm8k import main

if __name__ == "__main__":
    sys.exit(main())
