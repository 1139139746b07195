"""A 64-bit integer checksum of weights that adds up over shards, slices and fused parts.

The bit pattern of each element, plus one, is multiplied by a pseudo-random odd number for each of its global indices,
and the products are summed modulo 2**64 (multilinear hashing, Carter and Wegman 1979). The order of summation therefore
does not matter, a shard contributes with its global offsets, and the checksum of a whole is the sum of those of its
parts, while a swapped row, a transposed matrix, a stale tensor or a part counted twice changes it.
"""

import hashlib
from collections.abc import Iterable, Sequence

import torch

from verl_rollout.errors import RolloutError

_MODULUS = 1 << 64
_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Elements widened to 64 bits at a time: what stays in a core's cache, or 32 MiB on an accelerator.
_CPU_CHUNK_ELEMENTS = 1 << 15
_ACCELERATOR_CHUNK_ELEMENTS = 1 << 22


def weight_checksum(
    name: str,
    part: torch.Tensor,
    *,
    global_shape: Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
) -> int:
    """Checksum of one weight, or of a rectangular part of it, as an integer in [0, 2**64).

    Args:
        name: the weight's Hugging Face name; equal values under different names have different checksums.
        part: the values, of any dtype of at most 8 bytes; it may be a view into a fused tensor.
        global_shape: shape of the whole weight; `part` is the whole where it is left out.
        offsets: global index of the part's first element, one number per dimension; 0 where left out.
    """
    starts = tuple(offsets) if offsets is not None else (0,) * part.dim()
    whole = tuple(global_shape) if global_shape is not None else tuple(part.shape)
    inside = len(starts) == len(whole) == part.dim() and all(
        start >= 0 and start + size <= limit for start, size, limit in zip(starts, part.shape, whole, strict=True)
    )
    if not inside:
        raise RolloutError(
            f"A part of shape {tuple(part.shape)} at offsets {starts} does not lie inside {name}, whose shape is "
            f"{whole}. Give the whole weight's shape and one offset per dimension."
        )
    if part.numel() == 0:
        return 0
    if part.dim() == 0:
        part, starts = part.reshape(1), (0,)
    factors = [
        _index_factors(name, dimension, start, size, part.device)
        for dimension, (start, size) in enumerate(zip(starts, part.shape, strict=True))
    ]
    bits = part.detach().view(_INTEGER_OF_SIZE[part.element_size()])
    sums = _multiply_and_sum_last(bits, factors[-1])
    for factor in reversed(factors[:-1]):
        sums = (sums * factor).sum(-1)
    return int(sums.item()) % _MODULUS


def add_up(checksums: Iterable[int]) -> int:
    """The checksum of the whole from those of its parts, or of a model from those of its weights."""
    return sum(checksums) % _MODULUS


def _multiply_and_sum_last(bits: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Return ``((bits + 1) * factors).sum(-1)`` in wrapping int64; widens a cache-sized chunk of rows at a time."""
    length = bits.shape[-1]
    rows = bits.reshape(-1, length)
    budget = _CPU_CHUNK_ELEMENTS if bits.device.type == "cpu" else _ACCELERATOR_CHUNK_ELEMENTS
    chunk = max(1, budget // length)
    wide = torch.empty((min(chunk, len(rows)), length), dtype=torch.int64, device=bits.device)
    sums = torch.empty(len(rows), dtype=torch.int64, device=bits.device)
    for start in range(0, len(rows), chunk):
        block = rows[start : start + chunk]
        product = wide[: len(block)].copy_(block).mul_(factors)
        torch.sum(product, dim=-1, out=sums[start : start + chunk])
    return (sums + factors.sum()).reshape(bits.shape[:-1])


def _index_factors(name: str, dimension: int, start: int, size: int, device: torch.device) -> torch.Tensor:
    """(size,) odd int64: splitmix64 (Steele et al. 2014) of the global index, seeded by name and dimension."""
    digest = hashlib.blake2b(f"{dimension}:{name}".encode(), digest_size=8).digest()
    index = torch.arange(start + 1, start + size + 1, dtype=torch.int64, device=device)
    mixed = index * _signed(0x9E3779B97F4A7C15) + _signed(int.from_bytes(digest, "little"))
    mixed = (mixed ^ _shift_right(mixed, 30)) * _signed(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ _shift_right(mixed, 27)) * _signed(0x94D049BB133111EB)
    return (mixed ^ _shift_right(mixed, 31)) | 1


def _shift_right(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift as if unsigned: torch's >> on int64 copies the sign bit."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """The int64 that has the bits of an unsigned 64-bit value."""
    return value - _MODULUS if value >= _MODULUS // 2 else value
