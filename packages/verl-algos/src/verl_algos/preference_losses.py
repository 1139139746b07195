"""Losses of pairs of responses, one chosen over the other: DPO, IPO, SimPO, KTO in pair form, ORPO, Bradley-Terry.

Log-probs of a response are **sums** over its tokens (`sequence_logprobs`); the losses that compare means take lengths
beside them and divide themselves. A loss has one number per pair, (P,); the loss of a batch is its sum divided by the
valid pairs of the whole batch on all ranks, so that no split into micro-batches changes it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from verl_algos._finite import at_least_float32, limit, narrowed, saturated, summable, total, trained
from verl_algos._layout import Layout, as_mask, check_column, check_device
from verl_algos._numbers import checked, is_real
from verl_algos.loss_options import PREFERENCE_LOSS_INPUTS, PREFERENCE_LOSS_OPTIONS, canonical_loss, checked_options

__all__ = ["PreferenceMetrics", "bradley_terry", "compute", "kl_total", "sequence_logprobs"]

PreferenceMetrics = dict[str, tuple[Tensor, Tensor]]

_ORPO_EPSILON = 1e-6  # a mean log-prob of 0 has infinite odds


@dataclass(frozen=True)
class _Pairs:
    """Columns (P,) in float32 at least, exactly 0 at pairs that are not valid."""

    valid: Tensor
    chosen: Tensor
    rejected: Tensor
    ref_chosen: Tensor
    ref_rejected: Tensor
    chosen_lengths: Tensor
    rejected_lengths: Tensor
    chosen_kl: Tensor
    rejected_kl: Tensor
    has_lengths: bool

    @property
    def chosen_log_ratio(self) -> Tensor:
        """Policy over reference."""
        return saturated(self.chosen - self.ref_chosen)

    @property
    def rejected_log_ratio(self) -> Tensor:
        """Policy over reference."""
        return saturated(self.rejected - self.ref_rejected)

    @property
    def chosen_mean(self) -> Tensor:
        """Log-prob per token."""
        return self.chosen / self.chosen_lengths.clamp(min=1)

    @property
    def rejected_mean(self) -> Tensor:
        """Log-prob per token."""
        return self.rejected / self.rejected_lengths.clamp(min=1)


#: The loss of each pair, and the implicit rewards of the chosen and the rejected response.
_Result = tuple[Tensor, Tensor, Tensor]


def sequence_logprobs(
    logprobs: Tensor, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sum each sequence's log-probs and count its tokens, both (N,).

    A sequence without a valid token has sum 0 and length 0, whatever its columns hold (-inf, NaN): give its length, or
    a ``valid`` without it, to the loss, and its pair does not count.

    Args:
        logprobs: (B, T) or (T,).
        mask: same shape, the tokens of the response; all of them if None.
        cu_seqlens: (N+1,) offsets of packed sequences.
    """
    layout = Layout.of(mask, cu_seqlens, logprobs=logprobs)
    selected = trained(layout.select(logprobs))
    return narrowed(layout.sums(selected), selected.dtype), layout.counts()


def compute(
    name: str,
    *,
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor | None = None,
    ref_rejected_logprobs: Tensor | None = None,
    chosen_lengths: Tensor | None = None,
    rejected_lengths: Tensor | None = None,
    valid: Tensor | None = None,
    chosen_kl: Tensor | float | None = None,
    rejected_kl: Tensor | float | None = None,
    **options: float,
) -> tuple[Tensor, PreferenceMetrics]:
    """Compute ``(loss per pair, metrics)``.

    With c and r the log-ratios policy over reference of the chosen and the rejected response (sums over tokens), and
    C and R the policy's mean log-probs per token:

    - **dpo** (Rafailov et al. 2023, arXiv:2305.18290, eq. 7; label smoothing: Mitchell 2023, cDPO):
      ``-(1 - s) logsigmoid(beta (c - r)) - s logsigmoid(-beta (c - r))``, s = label_smoothing.
    - **ipo** (Azar et al. 2023, arXiv:2310.12036, eq. 17): ``(c - r - 1 / (2 beta))^2``. With lengths, c and r are
      means over tokens, as TRL takes them; without, sums as in the paper.
    - **simpo** (Meng et al. 2024, arXiv:2405.14734, eq. 6): ``-logsigmoid(beta (C - R) - gamma)``; no reference.
    - **kto**, pair form (Ethayarajh et al. 2024, arXiv:2402.01306, eq. 8):
      ``(w_d (1 - sigmoid(beta (c - rejected_kl))) + w_u (1 - sigmoid(beta (chosen_kl - r)))) / 2`` with
      w_d = desirable_weight, w_u = undesirable_weight.
    - **orpo** (Hong et al. 2024, arXiv:2403.07691, eq. 6 and 7): ``-C - beta logsigmoid(logodds(C) - logodds(R))`` with
      ``logodds(x) = x - log(1 - exp(x))``; no reference. C is at most -1e-6 in it.

    Args:
        name: a key of `verl_algos.loss_options.PREFERENCE_LOSS_OPTIONS`, in whatever spelling.
        chosen_logprobs: (P,), sums over the chosen responses' tokens, of the policy that is trained.
        rejected_logprobs: (P,), of the rejected responses.
        ref_chosen_logprobs: (P,), of the reference; for dpo, ipo and kto.
        ref_rejected_logprobs: (P,), as that.
        chosen_lengths: integer (P,), tokens; for simpo and orpo, optional for the others. A pair with a length of 0 is
            not valid.
        rejected_lengths: (P,), as that.
        valid: bool (P,), the pairs that count; all of them if None.
        chosen_kl: for kto: mean of ``c`` over the chosen responses of the **whole** batch, at least 0, without gradient
            (`kl_total`). If None that of this call, and the result depends on how the batch was split.
        rejected_kl: as that, of the rejected responses.
        **options: options of the loss; defaults and ranges are in the same table.

    Returns:
        The loss per pair, (P,), exactly 0 with gradient 0 for pairs that are not valid, and ``{name: (sum, count)}``
        over valid pairs: ``rewards/chosen`` and ``rewards/rejected`` (beta times c or r; simpo and orpo: times C or
        R), ``rewards/margins``, ``rewards/accuracies`` (pairs with a positive margin), ``logps/chosen`` and
        ``logps/rejected``. The count is the number of valid pairs.

    Raises:
        ValueError: the name is not known, an input that the loss needs is missing, one that it does not use is given,
            shapes disagree, or an option is not one of the loss or out of range.
    """
    name = canonical_loss(name)
    settings = checked_options("preference loss", name, PREFERENCE_LOSS_OPTIONS, options)
    columns = {
        "ref_chosen_logprobs": ref_chosen_logprobs,
        "ref_rejected_logprobs": ref_rejected_logprobs,
        "chosen_lengths": chosen_lengths,
        "rejected_lengths": rejected_lengths,
    }
    if (chosen_lengths is None) != (rejected_lengths is None):
        raise ValueError("chosen_lengths and rejected_lengths belong together: give both or neither.")
    missing = [needed for needed in PREFERENCE_LOSS_INPUTS[name] if columns[needed] is None]
    if missing:
        raise ValueError(f"The preference loss {name!r} needs {' and '.join(missing)}, which was not given.")
    unused = [key for key in columns if key.startswith("ref_") and columns[key] is not None]
    if unused and "ref_chosen_logprobs" not in PREFERENCE_LOSS_INPUTS[name]:
        raise ValueError(
            f"The preference loss {name!r} has no reference model: it does not use {' and '.join(unused)}."
        )
    if name != "kto" and not (chosen_kl is None and rejected_kl is None):
        raise ValueError(f"chosen_kl and rejected_kl belong to the preference loss kto: {name!r} does not use them.")

    counted = _counted(chosen_logprobs, rejected_logprobs, valid, columns)
    zeros = torch.zeros_like(chosen_logprobs)

    def selected(column: Tensor | None) -> Tensor:
        return trained(torch.where(counted, zeros if column is None else column, 0))

    chosen, rejected = selected(chosen_logprobs), selected(rejected_logprobs)
    ref_chosen, ref_rejected = selected(ref_chosen_logprobs).detach(), selected(ref_rejected_logprobs).detach()

    def kl_point(name: str, given: Tensor | float | None, log_ratio: Tensor) -> Tensor:
        if given is None:
            mean = summable(log_ratio.detach()).sum() / counted.sum().clamp(min=1)
            return narrowed(mean, log_ratio.dtype).clamp(min=0)
        if isinstance(given, Tensor) and given.numel() == 1:
            given = float(given)
        if not is_real(given) or not math.isfinite(given):
            raise ValueError(
                f"{name}={given} is not one finite number: it is the mean log-ratio of the whole batch, see kl_total."
            )
        return chosen.new_tensor(max(min(float(given), limit(chosen.dtype)), 0.0))

    pairs = _Pairs(
        counted,
        chosen,
        rejected,
        ref_chosen,
        ref_rejected,
        selected(chosen_lengths),
        selected(rejected_lengths),
        kl_point("chosen_kl", chosen_kl, saturated(chosen - ref_chosen)),
        kl_point("rejected_kl", rejected_kl, saturated(rejected - ref_rejected)),
        chosen_lengths is not None,
    )
    loss, chosen_reward, rejected_reward = _LOSSES[name](pairs, **settings)
    metrics = _reward_metrics(counted, chosen_reward, rejected_reward)
    number = counted.sum()
    metrics |= {
        "logps/chosen": (total(chosen.detach()), number),
        "logps/rejected": (total(rejected.detach()), number),
    }
    return torch.where(counted, saturated(loss), 0), metrics


def kl_total(logprobs: Tensor, ref_logprobs: Tensor, valid: Tensor | None = None) -> tuple[float, float]:
    """``(sum, count)`` of policy over reference log-ratios of responses, for the KL points of kto.

    Add both up over all parts of a batch; the quotient is `chosen_kl` (of chosen responses) or `rejected_kl`.

    Args:
        logprobs: (P,), sums over tokens, of the policy.
        ref_logprobs: (P,), of the reference.
        valid: bool (P,); all of them if None.
    """
    valid = _counted(logprobs, ref_logprobs, valid, {})
    difference = torch.where(valid, saturated(logprobs.detach().double() - ref_logprobs.double()), 0)
    return float(difference.sum()), float(valid.sum())


def bradley_terry(
    *,
    chosen_rewards: Tensor,
    rejected_rewards: Tensor,
    margin: Tensor | None = None,
    valid: Tensor | None = None,
    center_coef: float = 0.0,
) -> tuple[Tensor, PreferenceMetrics]:
    """The reward model's loss (Ouyang et al. 2022, arXiv:2203.02155, eq. 1): ``-logsigmoid(r_c - r_r - margin)``.

    Args:
        chosen_rewards: (P,), of the reward model that is trained.
        rejected_rewards: (P,).
        margin: (P,), how much better the chosen response was said to be (Llama 2, arXiv:2307.09288, eq. 2); 0 if None.
        valid: bool (P,), the pairs that count; all of them if None.
        center_coef: adds ``center_coef (r_c + r_r)^2``, which keeps rewards around 0 (arXiv:2312.09244); at least 0.

    Returns:
        The loss per pair and the metrics ``rewards/...`` as `compute`.

    Raises:
        ValueError: shapes disagree or center_coef is negative.
    """
    checked("center_coef", center_coef, "it draws the rewards of a pair towards 0", minimum=0.0)
    counted = _counted(chosen_rewards, rejected_rewards, valid, {"margin": margin})
    chosen, rejected = (trained(torch.where(counted, rewards, 0)) for rewards in (chosen_rewards, rejected_rewards))
    difference = saturated(chosen - rejected)
    if margin is not None:
        difference = saturated(difference - at_least_float32(torch.where(counted, margin.detach(), 0)))
    centre = saturated(center_coef * _square(chosen + rejected))
    return torch.where(counted, saturated(centre - logsigmoid(difference)), 0), _reward_metrics(
        counted, chosen, rejected
    )


def _dpo(pairs: _Pairs, *, beta: float, label_smoothing: float) -> _Result:
    chosen, rejected = _rewards(pairs, beta)
    margin = saturated(chosen - rejected)
    loss = -(1.0 - label_smoothing) * logsigmoid(margin) - label_smoothing * logsigmoid(-margin)
    return loss, chosen, rejected


def _ipo(pairs: _Pairs, *, beta: float) -> _Result:
    chosen, rejected = pairs.chosen_log_ratio, pairs.rejected_log_ratio
    if pairs.has_lengths:
        chosen = chosen / pairs.chosen_lengths.clamp(min=1)
        rejected = rejected / pairs.rejected_lengths.clamp(min=1)
    loss = _square(chosen - rejected - 1.0 / (2.0 * beta))
    return loss, saturated(beta * chosen), saturated(beta * rejected)


def _simpo(pairs: _Pairs, *, beta: float, gamma: float) -> _Result:
    chosen, rejected = saturated(beta * pairs.chosen_mean), saturated(beta * pairs.rejected_mean)
    return -logsigmoid(saturated(chosen - rejected - gamma)), chosen, rejected


def _kto(pairs: _Pairs, *, beta: float, desirable_weight: float, undesirable_weight: float) -> _Result:
    chosen, rejected = _rewards(pairs, beta)
    # 1 - sigmoid(x) is sigmoid(-x)
    gain = desirable_weight * torch.sigmoid(saturated(saturated(beta * pairs.rejected_kl) - chosen))
    loss = undesirable_weight * torch.sigmoid(saturated(rejected - saturated(beta * pairs.chosen_kl)))
    return 0.5 * (gain + loss), chosen, rejected


def _orpo(pairs: _Pairs, *, beta: float) -> _Result:
    chosen, rejected = pairs.chosen_mean, pairs.rejected_mean
    log_odds = saturated(_log_odds(chosen) - _log_odds(rejected))
    loss = saturated(-beta * logsigmoid(log_odds)) - chosen
    return loss, saturated(beta * chosen), saturated(beta * rejected)


_LOSSES: Mapping[str, Callable[..., _Result]] = MappingProxyType(
    {"dpo": _dpo, "ipo": _ipo, "simpo": _simpo, "kto": _kto, "orpo": _orpo}
)


def _rewards(pairs: _Pairs, beta: float) -> tuple[Tensor, Tensor]:
    return saturated(beta * pairs.chosen_log_ratio), saturated(beta * pairs.rejected_log_ratio)


def _square(x: Tensor) -> Tensor:
    furthest = math.sqrt(limit(x.dtype))
    return x.clamp(-furthest, furthest).square()


def _log_odds(mean_logprob: Tensor) -> Tensor:
    bounded = mean_logprob.clamp(max=-_ORPO_EPSILON)
    return bounded - torch.log(-torch.expm1(bounded))


def _counted(first: Tensor, second: Tensor, valid: Tensor | None, columns: Mapping[str, Tensor | None]) -> Tensor:
    """The pairs that count, after a check that every column is (P,)."""
    given = {"rejected": second, "valid": valid, **columns}
    check_column("chosen", first)
    if first.dim() != 1:
        raise ValueError(
            f"The chosen responses have shape {tuple(first.shape)}, but every column of a preference loss has one "
            "number per pair, (P,): add log-probs of tokens up with sequence_logprobs first."
        )
    for name, column in given.items():
        if column is not None:
            check_column(name, column)
            check_device(name, column, "chosen", first)
        if column is not None and column.shape != first.shape:
            raise ValueError(
                f"{name} has shape {tuple(column.shape)} but the chosen responses have {tuple(first.shape)}: every "
                "column of a preference loss has one number per pair, (P,)."
            )
    counted = torch.ones_like(first, dtype=torch.bool) if valid is None else as_mask("valid", valid)
    for name in ("chosen_lengths", "rejected_lengths"):
        lengths = columns.get(name)
        if lengths is not None:
            counted = counted & (lengths > 0)
    return counted


def _reward_metrics(counted: Tensor, chosen: Tensor, rejected: Tensor) -> PreferenceMetrics:
    number = counted.sum()
    margins = torch.where(counted, saturated((chosen - rejected).detach()), 0)
    return {
        "rewards/chosen": (total(torch.where(counted, chosen.detach(), 0)), number),
        "rewards/rejected": (total(torch.where(counted, rejected.detach(), 0)), number),
        "rewards/margins": (total(margins), number),
        "rewards/accuracies": ((margins > 0).sum(), number),
    }
