"""Log-probs and entropy of the distribution that tokens are sampled from: softmax(logits / temperature).

Both are computed from the same scaled logits, in float32 at least, and are differentiable. A logit of -inf (a token
that sampling excludes) has probability 0 and adds nothing to the entropy.
"""

import torch
from torch import Tensor

from verl_algos._finite import limit, trained
from verl_algos._layout import check_column, check_device, is_whole
from verl_algos._numbers import checked

__all__ = ["entropy_from_logits", "logprobs_from_logits"]


def logprobs_from_logits(logits: Tensor, token_ids: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-prob of each token, shape (...).

    Args:
        logits: (..., V); row t predicts ``token_ids[t]``: the shift by one is the caller's.
        token_ids: integer (...).
        temperature: that of sampling, above 0.

    Raises:
        ValueError: shapes disagree, token_ids are no integers, the temperature is not above 0, or (looked at on a CPU
            only) an id is outside the vocabulary.
    """
    check_column("logits", logits)
    check_column("token_ids", token_ids)
    if logits.dim() == 0 or logits.shape[:-1] != token_ids.shape:
        raise ValueError(
            f"logits have shape {tuple(logits.shape)} but token_ids {tuple(token_ids.shape)}: "
            "logits need exactly one more dimension, the vocabulary."
        )
    if not is_whole(token_ids):
        raise ValueError(f"token_ids have dtype {token_ids.dtype}: they are an integer tensor.")
    check_device("token_ids", token_ids, "logits", logits)
    if token_ids.device.type == "cpu" and token_ids.numel():  # on an accelerator it would wait for the device
        low, high = (int(bound) for bound in token_ids.aminmax())
        if low < 0 or high >= logits.shape[-1]:
            raise ValueError(
                f"token_ids go from {low} to {high}, but logits have a vocabulary of {logits.shape[-1]}. Labels such "
                "as -100 for tokens that are not trained are no ids: put 0 there, and leave the tokens out by the mask."
            )
    log_distribution = _log_distribution(logits, temperature)
    index = token_ids.long().unsqueeze(-1)
    chosen, logit = log_distribution.gather(-1, index).squeeze(-1), logits.detach().gather(-1, index).squeeze(-1)
    # Only an excluded token has no log-prob: that of one that is merely far below the others is finite.
    return torch.where(logit == -torch.inf, chosen, chosen.clamp(min=-limit(chosen.dtype)))


def entropy_from_logits(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Entropy in nats of each row's distribution, shape (...) for logits (..., V).

    Raises:
        ValueError: the temperature is not above 0.
    """
    check_column("logits", logits)
    log_distribution = _log_distribution(logits, temperature)
    # 0 * -inf would be NaN: an excluded token's log-prob may be any finite number, its probability is 0 all the same.
    finite = log_distribution.masked_fill(log_distribution == -torch.inf, 0.0)
    return -(log_distribution.exp() * finite).sum(dim=-1)


def _log_distribution(logits: Tensor, temperature: float) -> Tensor:
    checked(
        "temperature",
        temperature,
        "greedy sampling has no log-probs to train on, use the temperature of the training rollout",
        minimum=0.0,
        above_minimum=True,
    )
    scaled = trained(logits)
    if temperature != 1.0 and scaled.shape[-1]:
        # With the largest logit at 0 no temperature, however low, brings one to infinity.
        scaled = (scaled - scaled.detach().amax(dim=-1, keepdim=True)) / temperature
    return torch.log_softmax(scaled, dim=-1)
