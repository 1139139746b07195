"""Float64 all the way, for runs whose results are compared to 1e-10."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _KeepFloat64(TorchFunctionMode):
    """Turns a cast of a float64 tensor to float32 into none.

    Models compute their norms in float32 whatever their dtype (`x.to(torch.float32)`), for the sake of half precision;
    with float64 parameters that alone would limit results to seven digits.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.float and args[0].dtype == torch.float64:
            return args[0]
        if func is torch.Tensor.to and args[0].dtype == torch.float64:
            args = tuple(_widened(given) for given in args)
            kwargs = {name: _widened(given) for name, given in kwargs.items()}
        return func(*args, **kwargs)


def _widened(given: Any) -> Any:
    return torch.float64 if given is torch.float32 else given


def keep_precision(dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Return a context for passes that compute in `dtype`, in which float64 never falls back to float32."""
    return _KeepFloat64() if dtype == torch.float64 else nullcontext()
