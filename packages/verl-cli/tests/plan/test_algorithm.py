"""What a run maximises is told with everything that the chosen algorithm is told."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from verl_cli.build import build
from verl_cli.config import CustomRewardConfig, RewardConfig, resolve
from verl_cli.errors import UserError
from verl_cli.plan import make_plan, render
from verl_cli.plan.algorithm import algorithm_words, greedy_responses, own_function_problems
from verl_cli.plan.sample import look_at_reward
from verl_data import DataConfig

Overrides = Callable[..., list[str]]
PATHS = ("data.train_files=a", "data.val_files=b", "actor_rollout_ref.model.path=m", "actor_rollout_ref.rollout.n=4")
ACTOR = "actor_rollout_ref.actor"


def words(*overrides: str) -> str:
    return algorithm_words(resolve([*PATHS, *overrides]).config)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ((), "advantages by gae (gamma 1.0, lam 1.0), policy loss vanilla (aggregated by token-mean, clip_ratio 0.2, "),
        ((f"{ACTOR}.clip_ratio_high=0.28",), "clip_ratio_low 0.2, clip_ratio_high 0.28, clip_ratio_c 3.0)"),
        (("algorithm.adv_estimator=grpo",), "advantages by grpo (norm_adv_by_std_in_grpo true)"),
        (
            ("algorithm.adv_estimator=grpo", "algorithm.norm_adv_by_std_in_grpo=false"),
            "advantages by grpo (norm_adv_by_std_in_grpo false)",
        ),
        (("algorithm.adv_estimator=rloo",), "advantages by rloo, policy loss"),
        (
            ("algorithm.adv_estimator=rloo", "algorithm.adv_estimator_kwargs={compat: true}"),
            "advantages by rloo (compat true)",
        ),
        (
            ("algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[acc,form]"),
            'gdpo_reward_keys ["acc", "form"])',
        ),
        ((f"{ACTOR}.policy_loss.loss_mode=gpg",), "policy loss gpg (aggregated by token-mean)"),
        ((f"{ACTOR}.policy_loss.loss_mode=kl_cov",), "kl_cov_ratio 0.0002, ppo_kl_coef 0.1)"),
        (
            (f"{ACTOR}.policy_loss.loss_mode=own.py:mine", f"{ACTOR}.policy_loss.loss_kwargs={{scale: 2}}"),
            "policy loss own.py:mine (aggregated by token-mean, scale 2)",
        ),
    ],
)
def test_what_the_algorithm_is_told(overrides: tuple[str, ...], told: str) -> None:
    assert told in words(*overrides)


def test_remax_generates_one_more_response_to_each_prompt(overrides: Overrides) -> None:
    keys = [key for key in overrides(algorithm__adv_estimator="remax") if not key.startswith("critic")]
    plan = make_plan(resolve(keys))
    assert (plan.batch.greedy, plan.batch.sequences) == (8, 16)
    out = io.StringIO()
    Console(file=out, width=200).print(render(plan))
    assert "8 further responses a step, the likeliest to each prompt" in out.getvalue()


CLASSES = """
class Thing:
    def __init__(self, **row):
        pass

async def later(**row):
    return 1.0

def steps(**row):
    yield 1.0
"""


@pytest.mark.parametrize(
    ("name", "kind"), [("Thing", "a class"), ("later", "an async function"), ("steps", "a generator function")]
)
def test_what_is_no_function_is_a_problem(tmp_path: Path, name: str, kind: str) -> None:
    """A class can be called and gives an object, which is no advantage, loss or reward; nor is a generator."""
    (tmp_path / "own.py").write_text(CLASSES)
    path = f"{tmp_path}/own.py"
    for key in ("algorithm.adv_estimator", f"{ACTOR}.policy_loss.loss_mode"):
        config = resolve([*PATHS, f"{key}={path}:{name}"]).config
        (problem,) = own_function_problems(config)
        assert f"{name} there is {kind}" in problem
        with pytest.raises(UserError) as caught:  # before anything is loaded
            build(config)
        assert str(caught.value) == problem
    reward = RewardConfig(CustomRewardConfig(path=path, name=name))
    problems = look_at_reward(reward, DataConfig(), None, {}).problems
    assert name == "later" or f"{name!r} in {path} is {kind}" in problems[0]
    assert len(problems) == (name != "later"), "a reward function may be async"


def test_an_estimator_of_ones_own_may_ask_for_the_likeliest_responses(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "def compared(token_rewards, mask, baseline): return mask, mask\n"
        "def alone(token_rewards, mask): return mask, mask\n"
    )

    def further(name: str) -> int:
        keys = ("data.train_batch_size=16", f"{ACTOR}.ppo_mini_batch_size=16", f"algorithm.adv_estimator={name}")
        return greedy_responses(resolve([*PATHS, *keys]).config)

    assert further(f"{tmp_path}/own.py:compared") == further("remax") == 16
    assert further(f"{tmp_path}/own.py:alone") == further("grpo") == further(f"{tmp_path}/none.py:alone") == 0
