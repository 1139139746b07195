"""What the machine gives a process: CPU cores, memory limits, visible devices."""
