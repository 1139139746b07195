"""The commands of `verl-cli`, one module each. Heavy imports stand inside the functions, so that help is instant."""
