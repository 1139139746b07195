"""Turn HellaSwag into RL rows: the same as `python -m verl_data.processors.hellaswag`."""

import sys

from verl_data.processors.hellaswag import main

if __name__ == "__main__":
    sys.exit(main())
