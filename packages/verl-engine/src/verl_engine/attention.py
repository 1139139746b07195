"""Attention over packed sequences for transformers models: no padding reaches the model, no compiler is needed.

A transformers model loaded with ``attn_implementation=PACKED`` calls `packed_attention` in every layer. No mask
function is registered for this name, which makes transformers skip the construction of masks altogether.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

#: Name under which `register` makes `packed_attention` known to transformers.
PACKED = "verl_packed"

# Keywords that transformers hands through to attention and that change nothing of what is computed here.
_IRRELEVANT = frozenset(
    {
        "position_ids",
        "use_cache",
        "cache",
        "past_key_values",
        "cache_position",
        "is_causal",
        "logits_to_keep",
        "return_dict",
    }
)


def register() -> None:
    """Make `packed_attention` known to transformers; calling it again changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(PACKED, packed_attention)


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k: torch.Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention inside each packed sequence, never across two of them.

    `query` (1, heads, T, head size), `key` and `value` (1, key heads, T, head size) hold N sequences one after another;
    ``cu_seq_lens_q`` int32 (N+1,) says where each begins, `max_length_q` is the longest. `sliding_window` counts the
    tokens that a token sees, itself included. Returns (1, T, heads, head size) and None for the attention weights.

    Half precision on a GPU uses PyTorch's variable-length flash kernel; other dtypes and CPUs use scaled dot-product
    attention over right-padded rows inside this function (padding lies after every real token, so a causal mask hides
    it).

    Raises ValueError for what this attention does not compute (masks, dropout, soft-capping, sinks, ...).
    """
    unsupported = {name: given for name, given in others.items() if name not in _IRRELEVANT and not _absent(given)}
    if attention_mask is not None:
        unsupported["attention_mask"] = attention_mask
    if dropout:
        unsupported["dropout"] = dropout
    if not getattr(module, "is_causal", True) or others.get("is_causal") is False:
        unsupported["bidirectional attention"] = True
    if unsupported:
        raise ValueError(
            f"{type(module).__name__} asks its attention for {', '.join(sorted(unsupported))}, which attention over "
            "packed sequences does not compute; the result would be wrong without it. Use a model whose attention is "
            "causal softmax attention, optionally with a sliding window."
        )
    if (
        cu_seq_lens_q is None
        or max_length_q is None
        or cu_seq_lens_k is not cu_seq_lens_q
        or max_length_k != max_length_q
    ):
        raise ValueError(
            f"{type(module).__name__} did not pass on the boundaries of the packed sequences (cu_seq_lens_q, "
            "max_length_q, and the same for k). Packed training needs a model that hands the keywords of its forward "
            "on to its attention."
        )
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        attended = _flash(query[0], key[0], value[0], cu_seq_lens_q, max_length_q, scaling, sliding_window)
    else:
        attended = _rows(query[0], key[0], value[0], cu_seq_lens_q, max_length_q, scaling, sliding_window)
    return attended.unsqueeze(0), None


def _absent(given: object) -> bool:
    return given is None or given is False


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_length: int,
    scaling: float | None,
    sliding_window: int | None,
) -> torch.Tensor:
    """Attention by the variable-length kernel: (heads, T, head size) each -> (T, heads, head size)."""
    from torch.nn.attention import varlen

    # The kernel's left window counts the tokens before a token, without the token itself.
    left = -1 if sliding_window is None else sliding_window - 1
    varlen_attn: Callable[..., Any] = varlen.varlen_attn
    # Torch 2.11 takes grouped-query heads as they are; later versions want to be told.
    grouped = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
    attended: torch.Tensor = varlen_attn(
        query.transpose(0, 1),
        key.transpose(0, 1),
        value.transpose(0, 1),
        cu_seqlens,
        cu_seqlens,
        max_length,
        max_length,
        scale=scaling,
        window_size=(left, 0),
        **grouped,
    )
    return attended


def _rows(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_length: int,
    scaling: float | None,
    sliding_window: int | None,
) -> torch.Tensor:
    """Attention over right-padded rows: (heads, T, head size) each -> (T, heads, head size)."""
    tokens, sequences = query.shape[1], cu_seqlens.shape[0] - 1
    lengths = cu_seqlens.diff()
    rows = torch.repeat_interleave(torch.arange(sequences, device=query.device), lengths, output_size=tokens)
    places = torch.arange(tokens, device=query.device) - cu_seqlens[rows] + rows * max_length

    def padded(states: torch.Tensor) -> torch.Tensor:
        heads, _, size = states.shape
        empty = states.new_zeros(sequences * max_length, heads, size)
        filled = empty.index_copy(0, places, states.transpose(0, 1))
        return filled.view(sequences, max_length, heads, size).transpose(1, 2)

    mask = None
    if sliding_window is not None and sliding_window < max_length:
        age = torch.arange(max_length, device=query.device)
        age = age[:, None] - age[None, :]
        mask = (age >= 0) & (age < sliding_window)
    attended = functional.scaled_dot_product_attention(
        padded(query),
        padded(key),
        padded(value),
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=query.shape[0] != key.shape[0],
    )
    return attended.transpose(1, 2).flatten(0, 1).index_select(0, places)
