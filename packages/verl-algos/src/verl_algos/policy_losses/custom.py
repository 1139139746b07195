"""A user's policy loss: how it is called, and what it must return."""

import inspect
from collections.abc import Callable, Mapping
from numbers import Real

from torch import Tensor

from verl_algos.loss_options import LossOptionError
from verl_algos.policy_losses.columns import LossAndMetrics, TokenColumns

#: Called by keyword, with its options and what it names of ``logprobs, old_logprobs, advantages, mask, cu_seqlens``.
PolicyLossFunction = Callable[..., LossAndMetrics]

_INPUTS = ("logprobs", "old_logprobs", "advantages", "mask", "cu_seqlens")


def check(function: PolicyLossFunction, options: Mapping[str, object]) -> tuple[str, ...]:
    """Return the inputs that a user's loss is called with, those of `PolicyLossFunction` that it names.

    Raises:
        LossOptionError: the function does not take one of the options, or needs one that was not given.
    """
    signature = inspect.signature(function)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    inputs = tuple(name for name in _INPUTS if takes_any or name in signature.parameters)
    try:
        signature.bind(**dict.fromkeys(inputs), **options)
    except TypeError as error:
        raise LossOptionError(
            f"The policy loss {_name(function)}{signature} cannot be called with {', '.join([*inputs, *options])}: "
            f"{error}. It may name {', '.join(_INPUTS[:-1])} and {_INPUTS[-1]}; its other parameters are its options."
        ) from error
    return inputs


def call(function: PolicyLossFunction, columns: TokenColumns, options: Mapping[str, object]) -> LossAndMetrics:
    """Call a user's loss with columns that are 0 at masked tokens, and make its result 0 there.

    Raises:
        ValueError: the result is not a loss per token with ``{name: (sum, count)}``.
        LossOptionError: the function does not take one of the options, or needs one that was not given.
    """
    name = _name(function)
    inputs = {
        "logprobs": columns.logprobs,
        "old_logprobs": columns.old_logprobs,
        "advantages": columns.advantages,
        "mask": columns.layout.mask,
        "cu_seqlens": columns.layout.cu_seqlens,
    }
    result = function(**{key: inputs[key] for key in check(function, options)}, **options)
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Tensor)):
        raise ValueError(
            f"The policy loss {name} returned a {type(result).__name__}: it returns the pair (loss per token, metrics)."
        )
    per_token, metrics = result
    if per_token.shape != columns.logprobs.shape:
        raise ValueError(
            f"The policy loss {name} returned shape {tuple(per_token.shape)} for tokens of shape "
            f"{tuple(columns.logprobs.shape)}: it returns one number per token; aggregation sums them afterwards."
        )
    if columns.logprobs.requires_grad and not per_token.requires_grad:
        raise ValueError(
            f"The policy loss {name} does not depend on logprobs: it has no gradient, and nothing would be learnt. Let "
            "it take logprobs and compute with them."
        )
    if not isinstance(metrics, Mapping):
        raise ValueError(f"The policy loss {name} returned metrics that are a {type(metrics).__name__}, not a mapping.")
    for metric, pair in metrics.items():
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise ValueError(
                f"The policy loss {name} returned {metric!r} as a {type(pair).__name__}: a metric is a pair "
                "(sum, count), so that micro-batches and ranks add up."
            )
        for what, number in zip(("sum", "count"), pair, strict=True):
            if (kind := _no_number(number)) is not None:
                raise ValueError(
                    f"The policy loss {name} returned no number: the {what} of its metric {metric!r} is a {kind}: a "
                    "metric is a pair (sum, count) of single numbers, such as (x[mask].sum(), mask.sum())."
                )
    return columns.weighted(per_token), metrics


def _no_number(value: object) -> str | None:
    """What `value` is, if it is no single number."""
    if isinstance(value, Tensor):
        return f"tensor of shape {tuple(value.shape)}" if value.dim() else None
    return None if isinstance(value, Real) else type(value).__name__


def _name(function: PolicyLossFunction) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
