"""Turn your copy of MATH into RL rows: the same as `python -m verl_data.processors.math_dataset`."""

import sys

from verl_data.processors.math_dataset import main

if __name__ == "__main__":
    sys.exit(main())
