"""Ready-made processors, one module per data set; each is also a command: ``python -m verl_data.processors.gsm8k``."""
