"""Errors that a user can act on: what happened, to what, what to do."""


class EngineError(Exception):
    """A training engine cannot do what was asked; the message says what to change."""


class ModelError(EngineError):
    """A model folder cannot be loaded, or does not fit what it is loaded for."""


class CheckpointError(EngineError):
    """A checkpoint or export cannot be written, or a checkpoint is incomplete, damaged or of another model."""
