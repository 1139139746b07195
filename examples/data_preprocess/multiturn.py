"""Three conversations for multi-turn SFT: the same as `python -m verl_data.processors.multiturn`."""

import sys

from verl_data.processors.multiturn import main

if __name__ == "__main__":
    sys.exit(main())
