"""Failures that users of comparable systems reported (bug bank, area f), as inputs that must go well here."""

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from verl_algos import policy_losses
from verl_cli.config import ConfigError, Resolved, RunConfig, dump, resolve
from verl_cli.kl_in_reward import kl_controller, penalise_kl
from verl_cli.losses import ActorLoss
from verl_data import PackedBatch
from verl_engine import Denominators

PATHS = ("data.train_files=train.parquet", "data.val_files=val.parquet", "actor_rollout_ref.model.path=model")
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"


def run(*overrides: str, file: Path | None = None, preset: str = "ppo") -> Resolved:
    return resolve([*PATHS, *overrides], config_file=file, preset=preset)


def refused(*overrides: str, file: Path | None = None, preset: str = "ppo") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        run(*overrides, file=file, preset=preset)
    return caught.value.problems


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ("data.train_batch_size=4", f"{ACTOR}.ppo_mini_batch_size=4", "trainer.n_gpus_per_node=8"),
            ("trainer.n_gpus_per_node=8", "asks for 8 ranks"),
        ),
        (("data.train_batch_size=4", f"{ACTOR}.ppo_mini_batch_size=0"), ("=0 must be at least 1",)),
        (
            ("data.train_batch_size=4", f"{ACTOR}.ppo_mini_batch_size=8"),
            ("=4 prompts", f"{ACTOR}.ppo_mini_batch_size=8"),
        ),
        (
            ("data.train_batch_size=4", f"{ACTOR}.ppo_mini_batch_size=4", "critic.ppo_mini_batch_size=8"),
            ("=4 prompts", "critic.ppo_mini_batch_size=8"),
        ),
    ],
)
def test_a_mini_batch_that_would_become_empty_is_refused_before_the_start(
    overrides: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """F01: mini-batch normalises to 0 and loops for ever.

    It is judged as it is written, in prompts, before anything divides it: 4 on 8 ranks, 0, and more than a step has.
    """
    (problem,) = refused(*overrides)
    assert all(word in problem for word in words), problem


@pytest.mark.parametrize("section", [ACTOR, "critic"])
def test_a_train_batch_that_is_no_multiple_of_the_mini_batch_is_refused(section: str) -> None:
    """F03: train batch not divisible by mini-batch; of actor and critic alike, with both numbers."""
    others = (f"{ACTOR}.ppo_mini_batch_size=5",) if section == "critic" else ("critic.ppo_mini_batch_size=5",)
    (problem,) = refused("data.train_batch_size=10", *others, f"{section}.ppo_mini_batch_size=4")
    assert "data.train_batch_size=10" in problem
    assert f"{section}.ppo_mini_batch_size=4" in problem
    run("data.train_batch_size=12", f"{ACTOR}.ppo_mini_batch_size=4")


def actor_loss(config: RunConfig, *, ratio: float, advantage: float, ref_logprob: float = 0.0) -> float:
    """The loss of one sampled token."""
    old = torch.tensor([0.0, -3.0])
    columns = {
        "loss_mask": torch.tensor([False, True]),
        "cu_seqlens": torch.tensor([0, 2]),
        "old_logprobs": old,
        "ref_logprobs": torch.tensor([0.0, ref_logprob]),
        "advantages": torch.tensor([0.0, advantage]),
    }
    outputs = {"logprobs": old + torch.tensor([0.0, float(np.log(ratio))])}
    loss, _ = ActorLoss.of(config)(outputs, columns, Denominators(1.0, 1.0))
    return float(loss)


def test_the_dual_clip_reaches_the_loss() -> None:
    """F05: option accepted but never used because names differ. With ratio 10 and advantage -1 the loss is c."""
    for bound in (3.0, 5.0):
        config = run(f"{ACTOR}.clip_ratio_c={bound}").config
        assert actor_loss(config, ratio=10, advantage=-1) == pytest.approx(bound)
    assert actor_loss(run().config, ratio=10, advantage=-1) == pytest.approx(3.0)
    one = torch.zeros(1, 1)
    with pytest.raises(TypeError, match="clip_ratio_d"):
        policy_losses.compute("vanilla", logprobs=one, old_logprobs=one, advantages=one, clip_ratio_d=3.0)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("override", "decides"),
    [
        (f"{ACTOR}.optim.total_training_steps=9", "trainer.total_training_steps"),
        (f"{ROLLOUT}.response_length=9", "data.max_response_length"),
        (f"{ACTOR}.rollout_n=9", "actor_rollout_ref.rollout.n"),
        (f"{ACTOR}.data_loader_seed=9", "trainer.seed"),
        ("critic.optim.lr=1e-4", "critic.enable=false"),
        (f"{ACTOR}.clip_ratio=0.1", f"{ACTOR}.clip_ratio_low"),
    ],
)
def test_a_value_that_another_key_decides_is_refused(override: str, decides: str) -> None:
    """F06: overrides that cannot take effect are accepted. Here each names the place that decides instead."""
    others = (f"{ACTOR}.clip_ratio_low=0.2", f"{ACTOR}.clip_ratio_high=0.28") if "clip_ratio=" in override else ()
    (problem,) = refused(*others, override, preset="grpo")
    assert problem.startswith(override.partition("=")[0])
    assert decides in problem


def test_a_removed_key_in_a_file_is_refused(tmp_path: Path) -> None:
    """F06: documented keys that no longer exist do nothing."""
    file = tmp_path / "run.yaml"
    file.write_text("trainer: {remove_previous_ckpt_in_save: true, no_such_key: 1}\n")
    unknown, removed = refused(file=file)
    assert unknown.startswith("There is no key trainer.no_such_key")
    assert str(file) in unknown
    assert removed.startswith("trainer.remove_previous_ckpt_in_save=true has no effect")
    assert "trainer.max_actor_ckpt_to_keep=1" in removed


def test_the_key_n_survives_a_round_trip(tmp_path: Path) -> None:
    """F08: key `n` and YAML booleans."""
    file = tmp_path / "run.yaml"
    file.write_text("actor_rollout_ref: {rollout: {n: 1}}\n")
    dumped = tmp_path / "config.yaml"
    dumped.write_text(dump(run(file=file).config))
    assert "  n: 1\n" in dumped.read_text()
    assert yaml.safe_load(dumped.read_text())["actor_rollout_ref"]["rollout"]["n"] == 1
    assert resolve([f"{ROLLOUT}.n=16"], config_file=dumped).config.actor_rollout_ref.rollout.n == 16
    file.write_text("trainer: {on: 3}\n")
    (problem,) = refused(file=file)
    assert "There is no key trainer.True" in problem
    assert "quote such a name" in problem


def test_null_and_none_never_become_text(tmp_path: Path) -> None:
    """F10: null, None and the text 'None'."""
    for word in ("null", "None", "'None'"):
        config = run(f"trainer.total_training_steps={word}", f"reward.custom_reward_function.path={word}").config
        assert config.trainer.total_training_steps is None
        assert config.reward.custom_reward_function.path is None
        assert refused(f"trainer.project_name={word}")[0].startswith("trainer.project_name=null")
        file = tmp_path / "run.yaml"
        file.write_text(f"trainer: {{total_training_steps: {word}}}\n")
        assert run(file=file).config.trainer.total_training_steps is None
    assert run("reward.custom_reward_function.path='null'").config.reward.custom_reward_function.path == "null"


KL_IN_REWARD = ("algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef=0.1")
KL_IN_LOSS = (f"{ACTOR}.use_kl_loss", f"{ACTOR}.kl_loss_coef=0.1", f"{ACTOR}.kl_loss_type=k1")


@pytest.mark.parametrize("in_reward", [False, True])
@pytest.mark.parametrize("in_loss", [False, True])
def test_kl_in_the_reward_and_in_the_loss_are_two_options(in_reward: bool, in_loss: bool) -> None:
    """F15: KL in the reward and in the loss.

    k1 of 0.5 per token, coefficient 0.1, reward 1 on the last of two tokens.
    """
    overrides = [
        f"{KL_IN_REWARD[0]}={in_reward}",
        f"{KL_IN_LOSS[0]}={in_loss}",
        *(KL_IN_REWARD[1:] if in_reward else ()),
        *(KL_IN_LOSS[1:] if in_loss else ()),
    ]
    resolved = run(*overrides)
    config = resolved.config
    assert any("both in the reward and in the loss" in notice for notice in resolved.notices) == (in_reward and in_loss)

    batch = PackedBatch.from_sequences(
        tokens={
            "sampled_mask": [np.array([False, True, True])],
            "token_rewards": [np.array([0, 0, 1], np.float32)],
            "old_logprobs": [np.array([0, -1, -1], np.float32)],
            "ref_logprobs": [np.array([0, -1.5, -1.5], np.float32)],
        },
        sequences={},
    )
    rewards = batch["token_rewards"][1:].tolist()
    if config.algorithm.use_kl_in_reward:
        penalised, _ = penalise_kl(batch, config.algorithm.kl_penalty, kl_controller(config.algorithm.kl_ctrl))
        rewards = penalised["token_rewards"][1:].tolist()
    assert rewards == pytest.approx([-0.05, 0.95] if in_reward else [0, 1])

    loss = actor_loss(config, ratio=1, advantage=0, ref_logprob=-3.5)
    assert loss == pytest.approx(0.05 if in_loss else 0)


def test_kl_in_both_places_needs_both_to_be_asked_for() -> None:
    """F15: one of the two alone, beside a preset that sets the other, would count the divergence twice in silence."""
    (problem,) = refused("algorithm.use_kl_in_reward=true", preset="grpo")
    assert "counts it twice" in problem
