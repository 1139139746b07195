"""The two layouts of token columns behind one interface: padded (B, T), and packed (T,) with cu_seqlens (N+1,)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from verl_algos._finite import narrowed, summable


@dataclass(frozen=True)
class Layout:
    """Which tokens are valid and to which sequence each belongs.

    Values at tokens that are not valid are selected away before any arithmetic, never multiplied by 0, so that NaN
    or inf there reaches neither a result nor a gradient.
    """

    mask: Tensor
    """Bool, in the shape of the token columns: (B, T) or (T,)."""
    cu_seqlens: Tensor | None
    """int64 (N+1,): sequence i is tokens ``cu_seqlens[i]:cu_seqlens[i+1]``; None for the padded layout."""

    @classmethod
    def of(cls, mask: Tensor | None, cu_seqlens: Tensor | None, **columns: Tensor) -> "Layout":
        """Check that `columns` (at least one), `mask` and `cu_seqlens` fit together; without a mask every token is
        valid.

        The content of `cu_seqlens` is checked on a CPU only: on an accelerator reading it would wait for the device.
        """
        name, first = next(iter(columns.items()))
        for other, column in columns.items():
            check_column(other, column)
            if column.shape != first.shape:
                raise ValueError(
                    f"{other} has shape {tuple(column.shape)} but {name} has {tuple(first.shape)}: "
                    "all token columns of one call must have the same shape."
                )
            check_device(other, column, name, first)
        if mask is None:
            mask = torch.ones_like(first, dtype=torch.bool)
        else:
            check_column("mask", mask)
            if mask.shape != first.shape:
                raise ValueError(
                    f"mask has shape {tuple(mask.shape)} but {name} has {tuple(first.shape)}: "
                    "a mask says for every token whether it is valid, nothing is broadcast."
                )
            check_device("mask", mask, name, first)
            mask = as_mask("mask", mask)
        if first.dim() == 1:
            if cu_seqlens is None:
                raise ValueError(
                    f"{name} is packed, shape {tuple(first.shape)}, but cu_seqlens is missing: "
                    "pass the (N+1,) sequence offsets, or a padded (B, T) tensor."
                )
            cu_seqlens = _checked_cu_seqlens(cu_seqlens, first.shape[0]).to(first.device)
        elif first.dim() != 2:
            raise ValueError(f"{name} has shape {tuple(first.shape)}: token columns are padded (B, T) or packed (T,).")
        elif cu_seqlens is not None:
            raise ValueError(
                f"cu_seqlens was given but {name} is padded, shape {tuple(first.shape)}: "
                "cu_seqlens belongs to packed (T,) columns."
            )
        return cls(mask, cu_seqlens)

    @property
    def num_sequences(self) -> int:
        """N of the packed layout, B of the padded one."""
        return self.mask.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    def select(self, column: Tensor) -> Tensor:
        """`column` with exactly 0 at tokens that are not valid; the gradient there is exactly 0 too."""
        return torch.where(self.mask, column, 0)

    def zeros(self, dtype: torch.dtype) -> Tensor:
        """A token column of zeros, contiguous even where the mask is not."""
        return torch.zeros(self.mask.shape, dtype=dtype, device=self.mask.device)

    def counts(self) -> Tensor:
        """Valid tokens of each sequence, int64 (N,)."""
        if self.cu_seqlens is None:
            return self.mask.sum(dim=1)
        before = torch.nn.functional.pad(self.mask.cumsum(0, dtype=torch.int32), (1, 0))
        return before[self.cu_seqlens].diff().long()

    def sums(self, column: Tensor) -> Tensor:
        """Sum over the valid tokens of each sequence, float64 (N,).

        Token after token in both layouts, as zeros change no sum: the same to the last bit, also where large numbers
        cancel.
        """
        selected = summable(self.select(column))
        offsets = self.cu_seqlens
        if offsets is None:
            offsets = torch.arange(selected.shape[0] + 1, device=selected.device) * selected.shape[1]
        return torch.segment_reduce(selected.reshape(-1), "sum", offsets=offsets, axis=0)

    def total(self, column: Tensor) -> Tensor:
        """Sum over all valid tokens, 0-d, in the type of `column` (of flags and whole numbers int64)."""
        if not column.is_floating_point():
            return self.select(column).sum()
        return narrowed(self.sums(column).sum(), column.dtype)

    def spread(self, per_sequence: Tensor) -> Tensor:
        """Write each sequence's number (N,) to its valid tokens, 0 elsewhere."""
        if self.cu_seqlens is None:
            return torch.where(self.mask, per_sequence.unsqueeze(1), 0)
        return self.select(per_sequence.repeat_interleave(self.cu_seqlens.diff(), output_size=self.mask.shape[0]))

    def compact(self, column: Tensor) -> Tensor:
        """The valid tokens alone, (M,), sequence after sequence."""
        return column[self.mask]

    def restore(self, compact: Tensor) -> Tensor:
        """Put numbers of the valid tokens (M,) back into the shape of the token columns, 0 elsewhere."""
        return torch.zeros_like(self.mask, dtype=compact.dtype).masked_scatter(self.mask, compact)

    def remaining(self) -> Tensor:
        """For each valid token the number of valid tokens from it to the end of its sequence, int32 (M,)."""
        counts = self.counts()
        ends = counts.cumsum(0)
        total = int(ends[-1]) if len(ends) else 0
        ends_of_tokens = ends.int().repeat_interleave(counts, output_size=total)
        return ends_of_tokens - torch.arange(total, dtype=torch.int32, device=ends.device)


def check_sequence_column(name: str, column: Tensor, layout: Layout) -> None:
    """Raise ValueError unless `column` holds one number per sequence, shape (N,)."""
    check_column(name, column)
    if column.shape != (layout.num_sequences,):
        raise ValueError(
            f"{name} has shape {tuple(column.shape)} but there are {layout.num_sequences} sequences: "
            f"it needs one number per sequence, shape ({layout.num_sequences},)."
        )
    check_device(name, column, "the token columns", layout.mask)


def as_mask(name: str, mask: Tensor) -> Tensor:
    """`mask` as bool, after a check that it holds nothing but 0 and 1."""
    check_column(name, mask)
    if mask.dtype == torch.bool:
        return mask
    flags = mask.bool()
    if bool((mask != flags).any()):
        odd = mask[mask != flags][0]
        raise ValueError(
            f"{name} holds {odd.item()}, dtype {mask.dtype}: a mask is bool, or holds 0 and 1. Weights of tokens are "
            "no mask: multiply the loss by them."
        )
    return flags


def check_column(name: str, column: Tensor) -> None:
    """Raise ValueError unless `column` is a tensor of real numbers or flags."""
    if not isinstance(column, Tensor):
        raise ValueError(f"{name} is a {type(column).__name__}, not a torch.Tensor: wrap it in torch.as_tensor.")
    if column.is_complex():
        raise ValueError(f"{name} has dtype {column.dtype}: columns hold real numbers.")


def check_device(name: str, column: Tensor, other: str, reference: Tensor) -> None:
    """Raise ValueError unless both are on one device."""
    if column.device != reference.device:
        raise ValueError(
            f"{name} is on {column.device} but {other} on {reference.device}: move all columns of one call to one "
            "device."
        )


def is_whole(column: Tensor) -> bool:
    """Whether it holds integers; flags are none."""
    return not (column.is_floating_point() or column.is_complex() or column.dtype == torch.bool)


def _checked_cu_seqlens(cu_seqlens: Tensor, num_tokens: int) -> Tensor:
    check_column("cu_seqlens", cu_seqlens)
    if cu_seqlens.dim() != 1 or len(cu_seqlens) == 0 or not is_whole(cu_seqlens):
        raise ValueError(
            f"cu_seqlens has shape {tuple(cu_seqlens.shape)} and dtype {cu_seqlens.dtype}: "
            "it is an integer vector (N+1,) of sequence offsets that starts with 0."
        )
    cu_seqlens = cu_seqlens.long()
    if cu_seqlens.device.type == "cpu" and (
        int(cu_seqlens[0]) != 0 or int(cu_seqlens[-1]) != num_tokens or bool((cu_seqlens.diff() < 0).any())
    ):
        raise ValueError(
            f"cu_seqlens goes from {int(cu_seqlens[0])} to {int(cu_seqlens[-1])} for {num_tokens} packed tokens: "
            f"it must start with 0, never fall and end with {num_tokens}."
        )
    return cu_seqlens
