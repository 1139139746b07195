import hashlib
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_rollout.checksum import add_up, weight_checksum

WORD = 2**64


def oracle(name: str, bits: torch.Tensor) -> int:
    """The definition in Python's integers, element by element."""

    def factor(dimension: int, index: int) -> int:
        seed = int.from_bytes(hashlib.blake2b(f"{dimension}:{name}".encode(), digest_size=8).digest(), "little")
        mixed = (seed + (index + 1) * 0x9E3779B97F4A7C15) % WORD
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % WORD
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % WORD
        return (mixed ^ (mixed >> 31)) | 1

    total = 0
    for index in itertools.product(*(range(size) for size in bits.shape)):
        total += (int(bits[index]) + 1) * math.prod(factor(*pair) for pair in enumerate(index))
    return total % WORD


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32).to(dtype)


@pytest.mark.parametrize(
    ("dtype", "integer"),
    [
        (torch.float32, torch.int32),
        (torch.bfloat16, torch.int16),
        (torch.float16, torch.int16),
        (torch.float64, torch.int64),
        (torch.int8, torch.int8),
    ],
)
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4)])
def test_the_checksum_is_the_one_defined(shape: tuple[int, ...], dtype: torch.dtype, integer: torch.dtype) -> None:
    tensor = values(*shape, dtype=dtype)
    assert weight_checksum("w", tensor) == oracle("w", tensor.view(integer))


@given(data=st.data(), shape=st.lists(st.integers(1, 6), min_size=1, max_size=3))
@settings(deadline=None, max_examples=60)
def test_parts_add_up_to_the_whole(data: st.DataObject, shape: list[int]) -> None:
    whole = values(*shape)
    cuts = [sorted({0, size, *data.draw(st.lists(st.integers(0, size), max_size=2))}) for size in shape]
    boxes = itertools.product(*(list(itertools.pairwise(cut)) for cut in cuts))
    parts = [
        weight_checksum(
            "w",
            whole[tuple(slice(start, end) for start, end in box)],
            global_shape=shape,
            offsets=[start for start, _ in box],
        )
        for box in data.draw(st.permutations(list(boxes)))
    ]
    assert add_up(parts) == weight_checksum("w", whole)


def test_a_fused_weight_contributes_its_slices() -> None:
    query, key, value = values(6, 4), values(2, 4) + 1, values(2, 4) + 2
    fused = torch.cat([query, key, value])
    separate = add_up(weight_checksum(name, part) for name, part in zip("qkv", (query, key, value), strict=True))
    sliced = add_up(
        weight_checksum(name, part) for name, part in zip("qkv", (fused[:6], fused[6:8], fused[8:]), strict=True)
    )
    assert separate == sliced


def test_large_weights_are_summed_in_chunks() -> None:
    whole = values(300, 1000)
    halves = [weight_checksum("w", whole[:, :500], global_shape=(300, 1000), offsets=(0, 0))]
    halves.append(weight_checksum("w", whole[:, 500:], global_shape=(300, 1000), offsets=(0, 500)))
    assert add_up(halves) == weight_checksum("w", whole)


def test_every_kind_of_damage_shows() -> None:
    whole = values(8, 8)
    flipped = whole.clone()
    flipped.view(torch.int32)[3, 4] ^= 1
    variants = {
        "whole": weight_checksum("w", whole),
        "renamed": weight_checksum("v", whole),
        "transposed": weight_checksum("w", whole.T.contiguous()),
        "rows swapped": weight_checksum("w", whole[[1, 0, *range(2, 8)]]),
        "one bit": weight_checksum("w", flipped),
        "zeros": weight_checksum("w", torch.zeros(8, 8)),
        "fewer zeros": weight_checksum("w", torch.zeros(7, 8)),
        "counted twice": add_up([weight_checksum("w", whole)] * 2),
    }
    assert len(set(variants.values())) == len(variants)


def test_scalars_and_empty_weights_have_one() -> None:
    assert weight_checksum("w", torch.tensor(2.0)) != weight_checksum("w", torch.tensor(3.0))
    assert weight_checksum("w", torch.empty(0, 3)) == 0


@pytest.mark.parametrize("offsets", [(0, 1), (-1, 0), (0,)])
def test_a_part_outside_the_weight_is_refused(offsets: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="does not lie inside w"):
        weight_checksum("w", values(2, 2), global_shape=(2, 2), offsets=offsets)
