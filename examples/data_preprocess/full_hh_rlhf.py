"""Full HH-RLHF as rows for --split sft, rm or rl: the same as `python -m verl_data.processors.full_hh_rlhf`."""

import sys

from verl_data.processors.full_hh_rlhf import main

if __name__ == "__main__":
    sys.exit(main())
