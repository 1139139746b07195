"""The run directory on disk: its files and lock, its checkpoints and their copies, and going on from them."""
