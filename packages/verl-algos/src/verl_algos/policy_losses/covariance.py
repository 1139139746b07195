"""Losses that treat the few tokens apart which drive the entropy down: Clip-Cov and KL-Cov (arXiv:2505.22617).

Which tokens these are is a question to the whole mini-batch: means, a quota and, for Clip-Cov, a draw. A caller that
splits a mini-batch asks it once, before the split, with `select_by_covariance`; the answer is a column like any other.
"""

import torch
from torch import Tensor

from verl_algos._layout import Layout, as_mask, check_sequence_column, is_whole
from verl_algos.loss_options import POLICY_LOSS_OPTIONS, canonical_loss, checked_options
from verl_algos.policy_losses.columns import LossAndMetrics, TokenColumns


def select_by_covariance(
    name: str,
    *,
    logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    seed: int = 0,
    sequence_keys: Tensor | None = None,
    exclude: Tensor | None = None,
    **options: float,
) -> Tensor:
    """Choose the tokens that "clip_cov" or "kl_cov" treats apart, bool in the shape of logprobs.

    With ``cov = (A - mean A) (logprobs - mean logprobs)``, means over all n valid tokens of the call:

    - "clip_cov" draws ``max(1, floor(clip_cov_ratio n))`` of the tokens with ``clip_cov_lb < cov < clip_cov_ub`` (all,
      if there are fewer; none with ratio 0);
    - "kl_cov" takes the ``max(1, floor(kl_cov_ratio n))`` tokens with the largest cov (none with ratio 0).

    The draw, and the choice among equal covariances, is a hash of ``(seed, sequence key, position among the
    sequence's valid tokens)``: it depends neither on the order of sequences nor on padding, packing or any global
    generator. Call it with the whole mini-batch: `old_logprobs` stand for the log-probs of the policy, which differ
    from them by this step's updates only (on the first mini-batch not at all).

    Args:
        name: "clip_cov" or "kl_cov".
        logprobs: (B, T) or (T,).
        advantages: same shape.
        mask: same shape, the tokens that are trained; all of them if None.
        cu_seqlens: (N+1,) offsets of packed sequences.
        seed: of this mini-batch, such as the run's seed plus the number of optimiser steps; an int64.
        sequence_keys: integer (N,), different for every sequence of the mini-batch; the row number if None.
        exclude: bool, same shape: tokens that clip_cov must not choose.
        **options: those of the loss; the others have no part in the choice.

    Raises:
        ValueError: the name is another one, shapes disagree, or an option is out of range or not one of the loss.
    """
    name = canonical_loss(name)
    if name not in ("clip_cov", "kl_cov"):
        raise ValueError(f"The policy loss {name!r} chooses no tokens by covariance: clip_cov and kl_cov do.")
    settings = checked_options("policy loss", name, POLICY_LOSS_OPTIONS, options)
    if name == "clip_cov" and not settings["clip_cov_lb"] < settings["clip_cov_ub"]:
        raise ValueError(
            f"clip_cov_lb={settings['clip_cov_lb']} is not below clip_cov_ub={settings['clip_cov_ub']}: no token has a "
            "covariance between them, and clip_cov would never act."
        )
    layout = Layout.of(mask, cu_seqlens, logprobs=logprobs, advantages=advantages)
    if exclude is not None:
        exclude = as_mask("exclude", exclude)
        if exclude.shape != logprobs.shape:
            raise ValueError(
                f"exclude has shape {tuple(exclude.shape)} but logprobs has {tuple(logprobs.shape)}: they must be "
                "equal."
            )
    if sequence_keys is None:
        sequence_keys = torch.arange(layout.num_sequences, device=logprobs.device)
    check_sequence_column("sequence_keys", sequence_keys, layout)
    if not is_whole(sequence_keys):
        raise ValueError(f"sequence_keys has dtype {sequence_keys.dtype}: it is an integer tensor (N,).")
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(1 << 63) <= seed < 1 << 63:
        raise ValueError(f"seed={seed!r} is not an int64: use the run's seed plus the number of optimiser steps.")

    with torch.no_grad():
        advantage, logprob = (layout.compact(column).double() for column in (advantages, logprobs))
        num_tokens = len(advantage)
        chosen = torch.zeros(num_tokens, dtype=torch.bool, device=logprobs.device)
        ratio = settings["clip_cov_ratio" if name == "clip_cov" else "kl_cov_ratio"]
        if num_tokens and ratio:
            quota = max(1, int(ratio * num_tokens))
            covariance = _centred(advantage) * _centred(logprob)
            by_hash = _token_hashes(layout, sequence_keys, seed).argsort()
            if name == "clip_cov":
                candidates = (covariance > settings["clip_cov_lb"]) & (covariance < settings["clip_cov_ub"])
                if exclude is not None:
                    candidates &= ~layout.compact(exclude)
                chosen[by_hash[candidates[by_hash]][:quota]] = True
            else:
                largest = covariance[by_hash].argsort(descending=True, stable=True)[:quota]
                chosen[by_hash[largest]] = True
        return layout.restore(chosen)


def clip_cov(
    columns: TokenColumns,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    clip_cov_ratio: float,
    clip_cov_lb: float,
    clip_cov_ub: float,
    seed: int | None,
    sequence_keys: Tensor | None,
) -> LossAndMetrics:
    """Clip-Cov (Cui et al. 2025, arXiv:2505.22617): PPO's clip; the chosen tokens have no loss at all.

    Without ``covariance_selected`` the tokens are chosen among those of this call that the clip left alone, as
    published, which needs a seed.

    Metrics: ``pg_clipfrac`` (tokens dropped by covariance, as published), ``pg_clipfrac_ratio`` (tokens whose gradient
    the ratio's clip cut) and ``ppo_kl``.

    Raises:
        ValueError: neither ``covariance_selected`` nor a seed was given.
    """
    surrogate = -columns.advantages * columns.ratio
    clipped = -columns.advantages * columns.ratio.clamp(1.0 - clip_ratio_low, 1.0 + clip_ratio_high)
    cut = clipped > surrogate
    chosen = columns.covariance_selected
    if chosen is None:
        if seed is None:
            raise ValueError(
                "The policy loss 'clip_cov' draws tokens: give covariance_selected, chosen once for the mini-batch "
                "with select_by_covariance, or a seed to draw among the tokens of this call alone."
            )
        chosen = select_by_covariance(
            "clip_cov",
            logprobs=columns.logprobs.detach(),
            advantages=columns.advantages,
            mask=columns.layout.mask,
            cu_seqlens=columns.layout.cu_seqlens,
            seed=seed,
            sequence_keys=sequence_keys,
            exclude=cut,
            clip_cov_ratio=clip_cov_ratio,
            clip_cov_lb=clip_cov_lb,
            clip_cov_ub=clip_cov_ub,
        )
    return columns.loss(torch.where(chosen, 0, torch.maximum(surrogate, clipped))), {
        "pg_clipfrac": columns.share(chosen),
        "pg_clipfrac_ratio": columns.share(cut),
        "ppo_kl": columns.ppo_kl(),
    }


def kl_cov(
    columns: TokenColumns,
    *,
    kl_cov_ratio: float,
    ppo_kl_coef: float,
    seed: int | None,
    sequence_keys: Tensor | None,
) -> LossAndMetrics:
    """KL-Cov (Cui et al. 2025, arXiv:2505.22617): no clip; the chosen tokens pay for moving.

    ``-A ratio``, plus ``ppo_kl_coef abs(logprobs - old_logprobs)`` for the chosen tokens. Without
    ``covariance_selected`` the tokens are chosen among those of this call, as published.

    Metrics: ``pg_kl_penalized`` (the chosen tokens), ``ppo_kl_abs`` (mean of the absolute log-ratio) and ``ppo_kl``.
    """
    chosen = columns.covariance_selected
    if chosen is None:
        chosen = select_by_covariance(
            "kl_cov",
            logprobs=columns.logprobs.detach(),
            advantages=columns.advantages,
            mask=columns.layout.mask,
            cu_seqlens=columns.layout.cu_seqlens,
            seed=seed or 0,  # it only decides between equal covariances
            sequence_keys=sequence_keys,
            kl_cov_ratio=kl_cov_ratio,
        )
    distance = columns.log_ratio.abs()
    loss = -columns.advantages * columns.ratio + torch.where(chosen, ppo_kl_coef * distance, 0)
    return columns.loss(loss), {
        "pg_kl_penalized": columns.share(chosen),
        "ppo_kl_abs": columns.share(distance),
        "ppo_kl": columns.ppo_kl(),
    }


def _centred(column: Tensor) -> Tensor:
    """Numbers less their mean; exactly 0 if they are equal, when no rounding may choose between them."""
    above = column - column.min()
    return above - above.mean()


def _token_hashes(layout: Layout, sequence_keys: Tensor, seed: int) -> Tensor:
    """A pseudo-random int64 of each valid token, (M,), by seed, sequence and position."""
    keys = layout.compact(layout.spread(sequence_keys.long()))
    positions = layout.compact(layout.spread(layout.counts())) - layout.remaining()
    return _mixed(_mixed(_mixed(torch.full_like(keys, seed)) + keys) + positions)


def _mixed(x: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele et al. 2014) after its increment; int64 arithmetic wraps around."""
    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)  # torch shifts the sign in


def _signed(constant: int) -> int:
    return constant - (1 << 64)
