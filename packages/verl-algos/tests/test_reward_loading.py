"""What is loaded as a reward function, a reward model, an estimator or a policy loss, and what is refused."""

from pathlib import Path

import pytest
import torch
from verl_algos import advantages, policy_losses
from verl_algos.import_path import load_function
from verl_algos.rewards import (
    RewardError,
    RewardLoadError,
    RewardModel,
    RewardRow,
    RewardRunner,
    load_custom,
    load_model,
    load_model_class,
    score_all,
)

FILE = """
import functools, math
from verl_algos.rewards import RewardModel

class Mine(RewardModel):
    def score(self, rows): return [1.0 for row in rows]
class Waits(RewardModel):
    async def score(self, rows): return [1.0 for row in rows]
class Yields(RewardModel):
    def score(self, rows): yield 1.0
class NoRows(RewardModel):
    def score(self): return []
class NeedsMore(RewardModel):
    def score(self, rows, temperature): return []
class Static(RewardModel):
    @staticmethod
    def score(rows): return [2.0 for row in rows]
class Options(RewardModel):
    def score(self, rows, scale=3.0): return [scale for row in rows]
class Abstract(RewardModel): pass
class Plain:
    def __init__(self, **row): pass
class Callable:
    def __call__(self, **row): return 0.5
class CallableAsync:
    async def __call__(self, **row): return 0.5
def function(**row): return 0.5
async def waits(**row): return 0.5
def yields(**row): yield 0.5
async def async_yields(**row): yield 0.5
partial = functools.partial(function, option=1)
instance, model, number = Callable(), Mine(), 3
waiting = CallableAsync()
plain = Plain()
own = lambda token_rewards: (token_rewards, token_rewards)
"""
ROWS = [RewardRow("x", "a", "b")]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("name", ["function", "waits", "partial", "instance", "waiting"])
def test_what_is_a_reward_function(file: Path, name: str) -> None:
    assert score_all(load_custom(file, name), ROWS)[0].score == 0.5


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Plain", r"'Plain' in .*mine\.py is a class, not a function"),
        ("Callable", "is a class, not a function"),
        ("Mine", r"It is a reward model: set reward\.reward_model\.path=.*mine\.py:Mine instead"),
        ("model", "is a Mine, not a function"),
        ("plain", "is a Plain, not a function"),
        ("number", "is a int, not a function"),
        ("math", "is a module, not a function"),
        ("yields", "is a generator function, which yields, not a function"),
        ("async_yields", "is a generator function"),
        ("functoin", r"not defined in .* Did you mean function\? Set reward\.custom_reward_function\.name to one"),
    ],
)
def test_what_is_no_reward_function(file: Path, name: str, said: str) -> None:
    with pytest.raises(RewardLoadError, match=said):
        load_custom(file, name)


@pytest.mark.parametrize(("name", "score"), [("Mine", 1.0), ("Static", 2.0), ("Options", 3.0)])
def test_what_is_a_reward_model(file: Path, name: str, score: float) -> None:
    assert score_all(load_model(f"{file}:{name}"), ROWS)[0].score == score


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Waits", "Waits in .* has a score that is an async function, but .* called plainly .* write an async reward"),
        ("Yields", "has a score that is a generator function, which yields, but"),
        ("NoRows", r"has score\(self\), which cannot be called as model\.score\(rows\): too many"),
        ("NeedsMore", r"missing a required argument: 'temperature'\. Write it as score\(self, rows\)"),
        ("Abstract", r"does not implement score: give it score\(self, rows\)"),
        ("RewardModel", "is not a reward model but a class"),
        ("Plain", r"is not a reward model but a class\. .*make it a subclass"),
        ("model", "is not a reward model but a Mine, and not its class"),
        ("function", r"but a function\. A function is named by reward\.custom_reward_function\.path=.*name=function"),
        ("number", "is not a reward model but a int"),
        (
            "Mein",
            r"'Mein' is not defined in .*Reward models there: .*Mine.* Did you mean Mine\? Correct the class that ",
        ),
        ("Yours", r"is not defined in .*that reward\.reward_model\.path names, or make"),
    ],
)
def test_what_is_no_reward_model(file: Path, name: str, said: str) -> None:
    """The class is looked at and not made, so that a plan sees it."""
    with pytest.raises(RewardLoadError, match=said) as error:
        load_model_class(f"{file}:{name}")
    assert "custom_reward_function.name" not in str(error.value)
    assert "\n" not in str(error.value)


def test_a_misspelt_class_of_an_installed_module() -> None:
    with pytest.raises(RewardLoadError, match=r"Did you mean JudgeRewardModel\?"):
        load_model_class("verl_algos.rewards:JudgeRewardModl")


class Later(RewardModel):
    """Its score is plain and what it returns is not."""

    def score(self, rows):  # type: ignore[no-untyped-def]
        async def later() -> list[float]:
            return [1.0 for _ in rows]

        return later()


def test_a_model_that_returns_something_to_await_is_told() -> None:
    with pytest.raises(RewardError, match=r"Later .*raised TypeError: score\(rows\) returned something to await"):
        score_all(Later(), ROWS)
    with pytest.raises(RewardError, match=r"All 2 rows failed.* returned something to await"):
        RewardRunner(Later()).score(ROWS * 2)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Plain", r"\(Plain there is a class\)"),
        ("Mine", "there is a class"),
        ("waits", r"\(waits there is an async function\)"),
        ("waiting", "there is an async function"),
        ("yields", "there is a generator function"),
        ("async_yields", "there is a generator function"),
        ("math", "there is a module"),
        ("plain", "there is a Plain"),
        ("functoin", r"has no function 'functoin'.*Callable names there: .* Did you mean function\?"),
    ],
)
def test_what_is_no_estimator_and_no_policy_loss(file: Path, name: str, said: str) -> None:
    ones = torch.ones(1, 2)
    with pytest.raises(ValueError, match=f"names as the advantage estimator.*{said}|{said}"):
        advantages.compute(f"{file}:{name}", token_rewards=ones)
    with pytest.raises(ValueError, match=said):
        policy_losses.compute(f"{file}:{name}", logprobs=ones, old_logprobs=ones, advantages=ones)
    with pytest.raises(ValueError, match=said):
        load_function(f"{file}:{name}", "policy loss")


def test_functions_partials_and_callable_objects_are_estimators(file: Path) -> None:
    for name in ("function", "partial", "instance"):
        assert load_function(f"{file}:{name}", "advantage estimator") is not None
    gained, _ = advantages.compute(f"{file}:own", token_rewards=torch.ones(1, 2))
    assert gained.tolist() == [[1.0, 1.0]]
