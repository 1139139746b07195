"""DAPO-Math-17k with a code interpreter: the same as `python -m verl_data.processors.dapo_multiturn_w_tool`."""

import sys

from verl_data.processors.dapo_multiturn_w_tool import main

if __name__ == "__main__":
    sys.exit(main())
