"""Ready-made processors, one module per data set."""
