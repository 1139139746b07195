"""GSM8K for the agent loop tool_agent: the same as `python -m verl_data.processors.gsm8k_tool_agent_loop`."""

import sys

from verl_data.processors.gsm8k_tool_agent_loop import main

if __name__ == "__main__":
    sys.exit(main())
