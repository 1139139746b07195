"""Errors that a user can act on: what happened, to what, what to do."""


class RolloutError(ValueError):
    """A rollout engine was asked for what it cannot give: a bad argument, request, weight update or model folder."""


class ModelNotFoundError(RolloutError, FileNotFoundError):
    """There is no model folder where one was named."""


class NonFiniteLogitsError(RolloutError, FloatingPointError):
    """The model's logits hold infinities or NaN, so that no token can be drawn."""
