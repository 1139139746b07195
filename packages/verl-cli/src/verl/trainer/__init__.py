"""Entry points under their published names."""
