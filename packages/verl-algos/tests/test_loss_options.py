"""Tables of options: torch-free, complete, and what they say is what acts."""

import subprocess
import sys
from typing import Any, get_type_hints

import pytest
import torch
from verl_algos import loss_options, policy_losses

OLD = torch.tensor([[-0.5, -2.5, -1.0, -0.05], [-1.5, -1.1, -0.4, -0.02]], dtype=torch.float64)
NEW = OLD + torch.tensor([[0.3, -0.4, 3.5, -0.6], [-0.3, 0.2, 1.6, -2.9]], dtype=torch.float64)
ADVANTAGES = torch.tensor([[1.5, 0.5, -1, 2], [-1, -0.2, -0.4, 1]], dtype=torch.float64)


def test_options_need_no_torch() -> None:
    code = (
        "from verl_algos import loss_options, rollout_correction_options; import sys; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_typed_options_are_those_of_the_table() -> None:
    declared = {option for options in loss_options.POLICY_LOSS_OPTIONS.values() for option in options}
    assert set(get_type_hints(policy_losses.PolicyLossOptions)) == declared


#: An option of each loss and a value that must change the loss of the columns above.
CHANGES = {
    "clip_ratio_low": 0.01,
    "clip_ratio_high": 0.01,
    "clip_ratio_c": 1.1,
    "tau_pos": 3.0,
    "tau_neg": 3.0,
    "clip_cov_ratio": 0.13,
    "clip_cov_lb": 0.5,
    "clip_cov_ub": 0.098,
    "kl_cov_ratio": 0.9,
    "ppo_kl_coef": 0.9,
    "dro_beta": 0.9,
}
CASES = [(name, option) for name, options in loss_options.POLICY_LOSS_OPTIONS.items() for option in options]


@pytest.mark.parametrize(("name", "option"), CASES)
def test_f05_every_declared_option_acts(name: str, option: str) -> None:
    """Bug bank F05: option accepted but never used because names differ."""
    base: dict[str, Any] = {"dro": {"dro_beta": 0.5}}.get(name, {})
    if name == "clip_cov":
        base = {"seed": 0, "clip_cov_lb": 0.0, "clip_cov_ub": 9.0, "clip_cov_ratio": 1.0}
    if name.startswith("dppo"):
        base = {"clip_ratio_high": 1.0, "clip_ratio_low": 1.0}
    common: Any = {"logprobs": NEW, "old_logprobs": OLD, "advantages": ADVANTAGES}
    before, _ = policy_losses.compute(name, **common, **base)
    after, _ = policy_losses.compute(name, **common, **{**base, option: CHANGES[option]})
    assert not torch.equal(before, after)


@pytest.mark.parametrize(("name", "option"), CASES)
def test_numbers_outside_the_range_are_refused(name: str, option: str) -> None:
    declared = loss_options.POLICY_LOSS_OPTIONS[name][option]
    bad = [float("nan"), float("inf"), True if declared.minimum > 1 else "1"]
    if declared.minimum > -1e9:
        bad.append(declared.minimum if declared.above_minimum else declared.minimum - 0.1)
    if declared.maximum < 1e9:
        bad.append(declared.maximum + 0.1)
    for value in bad:
        with pytest.raises(ValueError, match=f"{option}={value} must be "):
            loss_options.checked_options("policy loss", name, loss_options.POLICY_LOSS_OPTIONS, {option: value})
    if declared.default is not None:
        assert declared.holds(declared.default)


def test_defaults_are_the_published_ones() -> None:
    defaults = {
        name: {option: declared.default for option, declared in options.items()}
        for name, options in loss_options.POLICY_LOSS_OPTIONS.items()
    }
    assert defaults["vanilla"] == {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0}
    assert defaults["sapo"] == {"tau_pos": 1.0, "tau_neg": 1.05}
    assert defaults["clip_cov"]["clip_cov_ratio"] == defaults["kl_cov"]["kl_cov_ratio"] == 0.0002
    assert defaults["dro"] == {"dro_beta": None}
    assert loss_options.AGGREGATION_MODES["vanilla"][0] == "token-mean"
