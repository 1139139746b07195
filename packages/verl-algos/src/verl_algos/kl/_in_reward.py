"""The KL penalty in the reward."""

import torch
from torch import Tensor

from verl_algos._finite import at_least_float32, saturated
from verl_algos._layout import Layout
from verl_algos._numbers import checked
from verl_algos.kl._estimators import penalty as estimate


def apply_kl_to_rewards(
    *,
    token_rewards: Tensor,
    logprobs: Tensor,
    ref_logprobs: Tensor,
    coef: float,
    penalty: str = "kl",
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
    """Subtract ``coef * KL`` from the reward of every sampled token, without gradient.

    Args:
        token_rewards: (B, T) or (T,).
        logprobs: same shape, of the policy that sampled or of the one before this step's updates.
        ref_logprobs: same shape, of the reference.
        coef: the controller's coefficient, at least 0.
        penalty: one of `PENALTIES`; there is no gradient, so that a + behind it changes nothing.
        mask: same shape, the sampled tokens (not the loss mask: rewards of rejected tokens stay); all of them if None.
        cu_seqlens: (N+1,) offsets of packed sequences.

    Returns:
        The new token rewards, 0 where the mask excludes a token, and ``{"reward_kl_penalty": (sum, count)}``: the
        KL of each sequence's mean token over the sequences that have one. Sequences without tokens do not dilute
        it: it drives `AdaptiveController`.

    Raises:
        ValueError: the penalty is not known, coef is out of range or shapes disagree.
    """
    checked("coef", coef, "it weighs the KL in the reward", minimum=0.0)
    layout = Layout.of(mask, cu_seqlens, token_rewards=token_rewards, logprobs=logprobs, ref_logprobs=ref_logprobs)
    with torch.no_grad():
        kl = estimate(penalty, layout.select(logprobs), layout.select(ref_logprobs))
        counts = layout.counts()
        per_sequence = layout.sums(kl) / counts.clamp(min=1)
        rewards = at_least_float32(layout.select(token_rewards))
        penalized = saturated(rewards - saturated(coef * kl))
        return torch.where(rewards.isinf(), rewards, penalized), {
            "reward_kl_penalty": (per_sequence.sum(), (counts > 0).sum())
        }
