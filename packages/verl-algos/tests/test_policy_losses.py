"""Policy losses: verl-facts P1, P2, P5; bug bank C25, C26, F05; gradients of the textbook formula."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from verl_algos import aggregation, policy_losses

OLD = torch.tensor([[0.5, 0.25, 0.1], [0.4, 0.2, 0.3]], dtype=torch.float64).log()
NEW = torch.tensor([[0.55, 0.15, 0.35], [0.22, 0.23, 0.15]], dtype=torch.float64).log()
ADVANTAGES = torch.tensor([[1.0, 1, 1], [-1, -1, -1]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]], dtype=torch.bool)


def token_mean(**options: Any) -> tuple[float, dict[str, float]]:
    loss, metrics = policy_losses.compute(
        "vanilla", logprobs=NEW, old_logprobs=OLD, advantages=ADVANTAGES, mask=MASK, **options
    )
    assert float(loss[1, 2]) == 0
    total = aggregation.aggregate(loss, mode="token-mean", denominators=aggregation.count(MASK), mask=MASK)
    return float(total), {name: float(s) / float(c) for name, (s, c) in metrics.items()}


def losses(
    advantage: list[float], ratio: list[float], **options: Any
) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
    logprobs = torch.tensor([ratio], dtype=torch.float64).log()
    return policy_losses.compute(
        "vanilla",
        logprobs=logprobs,
        old_logprobs=torch.zeros_like(logprobs),
        advantages=torch.tensor([advantage], dtype=torch.float64),
        **options,
    )


def test_p1_vanilla() -> None:
    loss, metrics = token_mean()
    assert loss == pytest.approx(-0.19, abs=1e-9)
    assert metrics == pytest.approx({"pg_clipfrac": 0.4, "pg_clipfrac_lower": 0.0, "ppo_kl": -0.075834493}, abs=1e-8)


def test_p2_clip_higher() -> None:
    assert token_mean(clip_ratio_low=0.2, clip_ratio_high=0.28)[0] == pytest.approx(-0.206, abs=1e-9)


def test_p5_rollout_weights() -> None:
    weights = torch.tensor([[1, 0.5, 2], [1.5, 1, math.nan]], dtype=torch.float64)
    assert token_mean(rollout_weights=weights)[0] == pytest.approx(-0.29, abs=1e-9)


def test_c25_dual_clip_only_for_negative_advantages() -> None:
    """Bug bank C25: the lower bound acts on negative advantages only, and c above 1 only is taken."""
    loss, metrics = losses([-1, 1, -1, -1, 1], [10, 10, 0.5, 1.5, 0.5])
    torch.testing.assert_close(loss, torch.tensor([[3.0, -1.2, 0.8, 1.5, -0.5]], dtype=torch.float64))
    assert int(metrics["pg_clipfrac_lower"][0]) == 1
    for c in (1.0, 0.5, math.nan):
        with pytest.raises(ValueError, match="clip_ratio_c"):
            losses([-1], [10], clip_ratio_c=c)


def test_c26_clip_fraction_counts_cut_gradients_only() -> None:
    """Bug bank C26: a ratio outside the band whose gradient is not cut does not count; nor do masked tokens."""
    flags = torch.tensor([[1, 1, 1, 1, 0]], dtype=torch.bool)
    _, metrics = losses([1, -1, 1, -1, 1], [1.5, 1.5, 0.5, 0.5, 9], mask=flags)
    assert [float(x) for x in metrics["pg_clipfrac"]] == [2, 4]


def test_f05_clip_ratio_c_acts_and_unknown_arguments_are_refused() -> None:
    assert float(losses([-1], [10], clip_ratio_c=3.0)[0]) == pytest.approx(3.0)
    assert float(losses([-1], [10], clip_ratio_c=5.0)[0]) == pytest.approx(5.0)
    for kind in (TypeError, ValueError):  # a wrong keyword of a call, a wrong key of a configuration
        with pytest.raises(kind, match=r"'vanilla' takes no option 'clip_ratio'\. It takes: clip_ratio_low"):
            losses([-1], [10], clip_ratio=0.1)
    with pytest.raises(ValueError, match=r"It takes: none\. clip_ratio_c belongs to: dppo_kl, dppo_tv, vanilla\."):
        policy_losses.compute("gpg", logprobs=NEW, old_logprobs=OLD, advantages=ADVANTAGES, clip_ratio_c=3.0)


def test_unknown_loss_and_bad_bounds() -> None:
    with pytest.raises(ValueError, match=r"Unknown policy loss 'ppo'\. Known: cispo, clip_cov, .*, vanilla\."):
        policy_losses.compute("ppo", logprobs=NEW, old_logprobs=OLD, advantages=ADVANTAGES)
    with pytest.raises(ValueError, match=r"Unknown policy loss 'Vanila'.*\. Did you mean vanilla\?"):
        policy_losses.compute("Vanila", logprobs=NEW, old_logprobs=OLD, advantages=ADVANTAGES)
    wrong: Any
    for wrong, kind in ((None, "a NoneType"), (3, "a int"), (dict, "a class")):
        with pytest.raises(ValueError, match=rf"The policy loss .* is {kind}: give the name of one \(cispo, "):
            policy_losses.compute(wrong, logprobs=NEW, old_logprobs=OLD, advantages=ADVANTAGES)
    with pytest.raises(ValueError, match="clip_ratio_low"):
        losses([1], [1], clip_ratio_low=1.5)
    with pytest.raises(ValueError, match="clip_ratio_high"):
        losses([1], [1], clip_ratio_high=-0.1)
    with pytest.raises(ValueError, match=r"clip_ratio_high=0\.2 must be at least 0"):
        losses([1], [1], clip_ratio_high="0.2")
    with pytest.raises(ValueError, match="'dro' needs dro_beta, a number above 0"):
        policy_losses.compute("dro", logprobs=NEW, old_logprobs=OLD, advantages=ADVANTAGES)
    with pytest.raises(ValueError, match=r"old_logprobs has shape \(1, 3\)"):
        policy_losses.compute("vanilla", logprobs=NEW, old_logprobs=OLD[:1], advantages=ADVANTAGES)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_c14_poison_at_masked_positions_reaches_neither_loss_nor_gradient(poison: float) -> None:
    logprobs = NEW.masked_fill(~MASK, poison).requires_grad_()
    bad = [column.masked_fill(~MASK, poison) for column in (OLD, ADVANTAGES)]
    loss, metrics = policy_losses.compute(
        "vanilla", logprobs=logprobs, old_logprobs=bad[0], advantages=bad[1], mask=MASK
    )
    (grad,) = torch.autograd.grad(loss.sum(), logprobs)
    assert grad.isfinite().all() and float(grad[1, 2]) == 0
    assert float(loss.detach().sum()) == pytest.approx(-0.95)
    assert all(math.isfinite(float(s)) for s, _ in metrics.values())


def test_large_finite_log_ratios_stay_finite() -> None:
    logprobs = torch.tensor([[0.0, -500.0]], requires_grad=True)
    loss, _ = policy_losses.compute(
        "vanilla", logprobs=logprobs, old_logprobs=torch.tensor([[-500.0, 0.0]]), advantages=torch.tensor([[-1.0, 1]])
    )
    (grad,) = torch.autograd.grad(loss.sum(), logprobs)
    assert loss.isfinite().all() and grad.isfinite().all()


def test_first_update_gradient_is_the_policy_gradient() -> None:
    logprobs = OLD.clone().requires_grad_()
    loss, _ = policy_losses.compute("vanilla", logprobs=logprobs, old_logprobs=OLD, advantages=ADVANTAGES)
    (grad,) = torch.autograd.grad(loss.sum(), logprobs)
    torch.testing.assert_close(grad, -ADVANTAGES)


@settings(deadline=None, max_examples=60)
@given(
    tokens=st.lists(st.tuples(st.floats(-2, 2), st.floats(-3, 3), st.floats(0, 2)), min_size=1, max_size=20),
    low=st.floats(0.05, 0.5),
    high=st.floats(0.05, 0.5),
    c=st.floats(1.6, 5),
)
def test_value_and_gradient_equal_the_textbook_formula(
    tokens: list[tuple[float, float, float]], low: float, high: float, c: float
) -> None:
    """A case by case statement of the objective: outside the trust region in the wrong direction the gradient is 0."""
    log_ratio, advantage, weight = torch.tensor(tokens, dtype=torch.float64).unbind(1)
    logprobs = log_ratio.clone().requires_grad_()
    offsets = torch.tensor([0, len(tokens)])
    loss, metrics = policy_losses.compute(
        "vanilla",
        logprobs=logprobs,
        old_logprobs=torch.zeros_like(log_ratio),
        advantages=advantage,
        cu_seqlens=offsets,
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_c=c,
        rollout_weights=weight,
    )
    (grad,) = torch.autograd.grad(loss.sum(), logprobs)
    expected_loss, expected_gradient, cut = [], [], 0
    for lr, a, w in tokens:
        ratio = math.exp(lr)
        if a > 0 and ratio > 1 + high:
            value, slope, cut = -a * (1 + high), 0.0, cut + 1
        elif a < 0 and ratio < 1 - low:
            value, slope, cut = -a * (1 - low), 0.0, cut + 1
        elif a < 0 and ratio > c:
            value, slope = -a * c, 0.0
        else:
            value, slope = -a * ratio, -a * ratio
        expected_loss.append(w * value)
        expected_gradient.append(w * slope)
    torch.testing.assert_close(loss.detach(), torch.tensor(expected_loss, dtype=torch.float64))
    torch.testing.assert_close(grad, torch.tensor(expected_gradient, dtype=torch.float64))
    assert int(metrics["pg_clipfrac"][0]) == cut


def weighted_gpg(logprobs: Tensor, advantages: Tensor, factor: float = 2.0) -> Any:
    assert not logprobs.isnan().any()
    loss = -factor * advantages * logprobs
    return loss + 7.0, {"factor": (loss.new_tensor(factor), loss.new_tensor(1.0))}


class TestCustomLoss:
    def test_function_and_import_path(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "my_losses_4711.py").write_text(
            "def loss(*, logprobs, advantages, mask, cu_seqlens, **options):\n"
            "    return -options['factor'] * advantages * logprobs, {}\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        options: Any = {"mask": MASK, "factor": 3.0}
        common: Any = {"logprobs": NEW.masked_fill(~MASK, math.nan), "old_logprobs": OLD, "advantages": ADVANTAGES}
        by_function, metrics = policy_losses.compute(weighted_gpg, **common, **options)
        by_path, _ = policy_losses.compute("my_losses_4711:loss", **common, **options)
        by_file, _ = policy_losses.compute(f"{tmp_path}/my_losses_4711.py:loss", **common, **options)
        assert torch.equal(by_path, by_file)
        assert float(by_function[1, 2]) == 0 and float(by_path[1, 2]) == 0
        torch.testing.assert_close(by_function[MASK], by_path[MASK] + 7.0)
        assert float(metrics["factor"][0]) == 3.0

    def test_refusals(self) -> None:
        common: Any = {"logprobs": NEW, "old_logprobs": OLD, "advantages": ADVANTAGES}

        def returns(result: object) -> Any:
            return lambda logprobs: result

        for result, message in [
            (None, r"returned a NoneType: it returns the pair \(loss per token, metrics\)"),
            ((NEW.sum(), {}), r"returned shape \(\) for tokens of shape \(2, 3\)"),
            ((NEW, {"kl": 0.5}), r"returned 'kl' as a float: a metric is a pair"),
            ((NEW, {"kl": (NEW, 1)}), r"the sum of its metric 'kl' is a tensor of shape \(\d.*single numbers"),
            ((NEW, {"kl": (0.5, None)}), r"the count of its metric 'kl' is a NoneType: .*single numbers"),
        ]:
            with pytest.raises(ValueError, match=message):
                policy_losses.compute(returns(result), **common)
        with pytest.raises(
            ValueError, match=r"weighted_gpg\(.*cannot be called with .*unexpected keyword argument 'beta'"
        ):
            policy_losses.compute(weighted_gpg, **{**common, "beta": 1.0})
        with pytest.raises(ValueError, match="json has no function 'no_such'"):
            policy_losses.compute("json:no_such", **common)
        with pytest.raises(ValueError, match="Unknown policy loss 'json:'"):
            policy_losses.compute("json:", **common)
        with pytest.raises(ValueError, match="policy loss could not be loaded from no_such_module"):
            policy_losses.compute("no_such_module:loss", **common)
