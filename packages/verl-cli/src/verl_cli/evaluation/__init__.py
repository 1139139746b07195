"""Scoring a model: validation in training, `verl-cli eval`, `verl-cli generate`, all by one path."""
