"""How far policy and rollout are apart, whether or not anything is corrected."""

import torch
from torch import Tensor

from verl_algos.rollout_correction.ratios import LOG_RATIO_LIMIT, Mismatch, finite_exp, mean, spread_of, std


def divergence_metrics(mismatch: Mismatch) -> dict[str, float]:
    """KL, perplexities and chi-squared, by published name without prefix.

    Means over tokens: kl (``log rollout - log policy``, an estimate of KL(rollout || policy)), k3_kl and chi2_token.
    Means over sequences that have tokens: the perplexities (of each sequence), their log differences and ratio, and
    chi2_seq.
    """
    log_ratio = mismatch.layout.compact(mismatch.bounded)
    training, rollout = mismatch.log_perplexities()
    difference = training - rollout
    products = mismatch.sequence_sums(mismatch.log_ratio)[mismatch.sequences].clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    some = float(len(log_ratio) > 0)
    return {
        "training_ppl": mean(finite_exp(training)),
        "training_log_ppl": mean(training),
        "rollout_ppl": mean(finite_exp(rollout)),
        "rollout_log_ppl": mean(rollout),
        "kl": mean(-mismatch.layout.compact(mismatch.log_ratio)),
        "k3_kl": mean(torch.expm1(log_ratio) - log_ratio),
        "log_ppl_diff": mean(difference),
        **spread_of("log_ppl_diff", difference),
        "log_ppl_abs_diff": mean(difference.abs()),
        "ppl_ratio": mean(finite_exp(difference)),
        "chi2_token": mean((2.0 * log_ratio).exp()) - some,
        "chi2_seq": mean((2.0 * products).exp()) - some,
    }


def probability_metrics(
    old_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
) -> dict[str, float]:
    """How well the probabilities of sampled tokens agree between rollout and training engine.

    Args:
        old_logprobs: (B, T) or (T,), of the training engine.
        rollout_logprobs: same shape.
        mask: same shape, the sampled tokens; all of them if None.
        cu_seqlens: (N+1,) offsets of packed sequences.

    Returns:
        ``training/rollout_probs_diff_{valid,max,mean,std}`` of the absolute differences (valid is 1, or 0 without a
        token) and ``training/rollout_actor_probs_pearson_corr`` (0 where one side does not vary).

    Raises:
        ValueError: shapes disagree or a valid log-prob is not finite (`NonFiniteError`).
    """
    mismatch = Mismatch.of(old_logprobs, rollout_logprobs, mask, cu_seqlens)
    training, rollout = (
        mismatch.layout.compact(column).clamp(max=0.0).exp()
        for column in (mismatch.logprobs, mismatch.rollout_logprobs)
    )
    difference = (training - rollout).abs()
    centred = [column - mean(column) for column in (training, rollout)]
    scale = float((centred[0].square().sum() * centred[1].square().sum()).sqrt())
    return {
        "training/rollout_probs_diff_valid": float(len(difference) > 0),
        "training/rollout_probs_diff_max": spread_of("", difference)["_max"],
        "training/rollout_probs_diff_mean": mean(difference),
        "training/rollout_probs_diff_std": std(difference, unbiased=True),
        "training/rollout_actor_probs_pearson_corr": float((centred[0] * centred[1]).sum()) / scale if scale else 0.0,
    }
