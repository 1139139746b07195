"""One call for every estimator: what each needs and takes, spellings, functions of the user's own."""

import inspect
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from verl_algos import advantages
from verl_algos.errors import NonFiniteError
from verl_algos.estimators import ALIASES, ESTIMATORS, INPUTS, OPTIONS, SHARED_OPTIONS, canonical

NAN = math.nan
ONE = torch.ones(1, 1, dtype=torch.float64)
GROUP = torch.tensor([0])


def every_input(shape: tuple[int, int] = (1, 1)) -> dict[str, Any]:
    """All that any estimator may be given."""
    columns = {
        name: torch.full(shape, 0.5, dtype=torch.float64)
        for name in ("token_rewards", "values", "old_logprobs", "sum_pi_squared", "rollout_weights")
    }
    sequences = torch.full((shape[0],), 0.5, dtype=torch.float64)
    return {
        **columns,
        "group": torch.zeros(shape[0], dtype=torch.int64),
        "baseline": sequences,
        "reward_components": {"a": sequences},
    }


def test_tables_agree_with_the_functions() -> None:
    assert set(every_input()) == set(INPUTS)
    assert set(SHARED_OPTIONS) < set(OPTIONS)
    assert {name: spec.required for name, spec in ESTIMATORS.items()} == advantages.REQUIRED_INPUTS
    for name, spec in ESTIMATORS.items():
        parameters = inspect.signature(getattr(advantages, name)).parameters
        required = [p for p in parameters.values() if p.default is p.empty]
        assert {p.name for p in required} == set(spec.required)
        assert set(parameters) == {*spec.required, *spec.optional, *spec.options, "mask", "cu_seqlens"}
        assert set(spec.required) | set(spec.optional) <= set(INPUTS) and set(spec.options) <= set(OPTIONS)
        assert (spec.least_group_size == 2) == ("group" in spec.required) == ("compat" in spec.options)
        assert advantages.describe(name) is spec


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_what_is_missing_is_named(name: str) -> None:
    inputs = every_input()
    advantages.compute(name, **inputs)
    for column in ESTIMATORS[name].required[1:]:
        with pytest.raises(ValueError, match=f"'{name}' needs {column}, which was not given.*{column} is "):
            advantages.compute(name, **{**inputs, column: None})
    if len(ESTIMATORS[name].required) > 2:
        with pytest.raises(ValueError, match=f"needs {' and '.join(ESTIMATORS[name].required[1:])}"):
            advantages.compute(name, token_rewards=ONE)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_f05_an_unknown_option_is_named(name: str) -> None:
    """Bug bank F05: an option that nothing reads is refused."""
    with pytest.raises(ValueError, match=f"'{name}' has no option lamda"):
        advantages.compute(name, **every_input(), lamda=0.9)
    for option in set(OPTIONS) - set(SHARED_OPTIONS) - set(ESTIMATORS[name].options):
        with pytest.raises(ValueError, match=f"has no option {option}"):
            advantages.compute(name, **{**every_input(), option: True})


def test_a_misspelt_keyword_is_named_before_what_is_missing_for_it() -> None:
    misspelt: Any
    for misspelt, hint in ({"value": ONE}, "values"), ({"values": ONE, "lambd": 0.9}, "lam"):
        with pytest.raises(ValueError, match=rf"'gae' has no option .*\. Did you mean {hint}\?"):
            advantages.compute("gae", token_rewards=ONE, **misspelt)
    with pytest.raises(ValueError, match=r"Did you mean norm_by_std\?"):
        advantages.compute("grpo", token_rewards=ONE, group=[0], norm_adv_by_std_in_grpo=False)


def test_switches_are_true_or_false() -> None:
    for switch in (np.bool_(False), False):
        raw, _ = advantages.compute("grpo", token_rewards=ONE + 1, group=[0], compat=switch)
        assert not raw.any()
    alone, _ = advantages.compute("grpo", token_rewards=ONE + 1, group=[0], compat=np.bool_(True), norm_by_std=False)
    assert torch.equal(alone, ONE + 1)
    wrong: Any
    for wrong in (None, "false", 0):
        with pytest.raises(
            ValueError, match=r"whiten=.* of the advantage estimator 'gae' is a .*: give it True or False"
        ):
            advantages.compute("gae", token_rewards=ONE, values=ONE, whiten=wrong)


def test_what_is_neither_a_name_nor_a_function_is_refused() -> None:
    wrong: Any
    for wrong, kind in ((None, "a NoneType"), (3, "a int"), (dict, "a class")):
        with pytest.raises(ValueError, match=rf"The advantage estimator .* is {kind}: give the name of one \(gae, "):
            advantages.compute(wrong, token_rewards=ONE)


def test_spellings() -> None:
    for alias, name in ALIASES.items():
        assert canonical(alias) == canonical(alias.upper()) == name
    for name in ESTIMATORS:
        assert canonical(name) == canonical(name.upper()) == name
    assert canonical("ReMax") == "remax" and canonical("REINFORCE++-Baseline") == "reinforce_plus_plus_baseline"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gea", "Did you mean gae?"),
        ("reinforce_plusplus", "Did you mean reinforce_plus_plus?"),
        ("Dr. GRPO", "Dr. GRPO is grpo with norm_by_std=False"),
        ("dr_grpo", "Dr. GRPO is grpo with norm_by_std=False"),
        ("xyz", r"or file\.py:function"),
    ],
)
def test_an_unknown_name_is_refused_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=rf"Unknown advantage estimator {name!r}. Known: gae, .*{hint}"):
        advantages.compute(name, token_rewards=ONE)


def test_the_table_needs_no_torch() -> None:
    code = "import verl_algos.estimators, verl_algos.import_path, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_half_precision_is_computed_in_float32_without_gradient(name: str) -> None:
    inputs: dict[str, Any] = {
        column: value.bfloat16().requires_grad_() if isinstance(value, Tensor) and value.dim() == 2 else value
        for column, value in every_input((2, 2)).items()
    }
    result, returns = advantages.compute(name, **inputs)
    assert result.dtype == returns.dtype == torch.float32
    assert not result.requires_grad and not returns.requires_grad
    assert result.data_ptr() != returns.data_ptr()


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_wrong_shapes_are_refused(name: str) -> None:
    inputs = {**every_input((2, 2)), "mask": torch.ones(2, 2, dtype=torch.bool)}
    for column in (*ESTIMATORS[name].required, *ESTIMATORS[name].optional, "mask"):
        if isinstance(inputs[column], Tensor):
            with pytest.raises(ValueError, match="shape"):
                advantages.compute(name, **{**inputs, column: inputs[column][:1]})


# --- a function of the user's own

SOURCE = """
import torch

def leave_mean(*, token_rewards, mask, group, scale=1.0):
    sums = (token_rewards * mask).sum(1)
    result = scale * (sums - sums.mean()).unsqueeze(1).expand_as(token_rewards)
    return result, result
"""


def test_custom_function_of_a_file_of_a_module_and_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "own_advantage.py"
    file.write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    namespace: dict[str, Any] = {}
    exec(SOURCE, namespace)
    rewards = torch.tensor([[1.0, NAN], [0, 1]], dtype=torch.float64)
    mask = torch.tensor([[1, 0], [1, 1]], dtype=torch.bool)
    spellings: tuple[Any, ...] = (f"{file}:leave_mean", "own_advantage:leave_mean", namespace["leave_mean"])
    for name in spellings:
        spec = advantages.describe(name)
        assert spec.required == ("token_rewards", "group") and spec.options == ("scale",)
        result, returns = advantages.compute(
            name, token_rewards=rewards, mask=mask, group=torch.tensor([0, 0]), values=rewards, scale=2.0
        )
        assert result.tolist() == returns.tolist() == [[0, 0], [0, 0]]
        assert result.data_ptr() != returns.data_ptr()
        with pytest.raises(ValueError, match="needs group, which was not given"):
            advantages.compute(name, token_rewards=rewards)
        with pytest.raises(ValueError, match=r"has no option scalle\. It takes scale"):
            advantages.compute(name, token_rewards=rewards, group=torch.tensor([0, 0]), scalle=1)
    file.write_text(SOURCE.replace("sums.mean()", "0.0"))  # an edit takes effect
    result, _ = advantages.compute(f"{file}:leave_mean", token_rewards=rewards, mask=mask, group=torch.tensor([0, 0]))
    assert result.tolist() == [[1, 0], [1, 1]]


def test_custom_function_may_need_what_only_the_caller_knows() -> None:
    def own(token_rewards: Tensor, steps_left: Tensor, **others: Any) -> tuple[Tensor, Tensor]:
        assert set(others) >= {"mask", "cu_seqlens", "gamma", "lam", "whiten", "norm_by_std"}
        return token_rewards * steps_left * others["gamma"], token_rewards

    result, _ = advantages.compute(own, token_rewards=ONE, steps_left=ONE * 3, gamma=0.5)
    assert result.tolist() == [[1.5]]
    with pytest.raises(ValueError, match=r"own needs steps_left, which was not given"):
        advantages.compute(own, token_rewards=ONE)


def test_custom_function_sees_zero_at_masked_tokens_and_cannot_write_there() -> None:
    def own(*, token_rewards: Tensor, values: Tensor, mask: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        assert cu_seqlens.tolist() == [0, 3]
        assert values.tolist() == token_rewards.tolist() == [0.0, 2.0, 3.0]
        assert mask.tolist() == [False, True, True]
        return values + 1, values.fill_(math.inf).where(mask.logical_not(), 7.0)

    column = torch.tensor([NAN, 2, 3])
    result, returns = advantages.compute(
        own,
        token_rewards=column,
        values=column.clone(),
        mask=torch.tensor([0, 1, 1]),
        cu_seqlens=torch.tensor([0, 3]),
    )
    assert result.tolist() == [0, 3, 4] and returns.tolist() == [0, 7, 7]


def test_c05_custom_function_and_unscored_sequences() -> None:
    """Bug bank C05: an unscored sequence gets 0, whatever a function makes of it; other bad numbers are an error."""

    def own(*, token_rewards: Tensor) -> tuple[Tensor, Tensor]:
        return token_rewards, token_rewards

    result, _ = advantages.compute(own, token_rewards=torch.tensor([[1.0, 1], [NAN, 1]]))
    assert result.tolist() == [[1, 1], [0, 0]]

    def broken(*, token_rewards: Tensor) -> tuple[Tensor, Tensor]:
        return token_rewards / 0.0, token_rewards

    with pytest.raises(NonFiniteError, match=r"advantages or returns of .*broken holds 2 valid .*repair the function"):
        advantages.compute(broken, token_rewards=torch.tensor([[1.0, 1]]))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def own(token_rewards): return token_rewards", r"returned Tensor: it returns the pair"),
        ("def own(token_rewards): return token_rewards[:, :0], token_rewards", r"shape \(1, 0\).*one number per token"),
        ("def own(token_rewards, /): pass", "takes token_rewards by position"),
        ("def own(*columns): pass", r"takes \*columns by position"),
        (
            "def own(token_level_rewards, response_mask): pass",
            "takes token_level_rewards, which is called token_rewards",
        ),
        ("own = 3", "has no function 'own'"),
        ("def other(): pass", r"has no function 'own'.* Callable names there: other\."),
        ("import no_such_module_anywhere", "raised ModuleNotFoundError"),
        ("def own(:", "raised SyntaxError"),
    ],
)
def test_custom_function_that_does_not_fit(tmp_path: Path, source: str, message: str) -> None:
    file = tmp_path / "own.py"
    file.write_text(source)
    with pytest.raises(ValueError, match=message):
        advantages.compute(f"{file}:own", token_rewards=ONE)


def test_custom_function_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"missing\.py of the advantage estimator .* does not exist"):
        advantages.compute(f"{tmp_path}/missing.py:own", token_rewards=ONE)
    with pytest.raises(ValueError, match="could not be loaded from no_such_package"):
        advantages.compute("no_such_package.module:own", token_rewards=ONE)
    with pytest.raises(ValueError, match=r"Unknown advantage estimator 'own\.py:'"):
        advantages.compute("own.py:", token_rewards=ONE)
