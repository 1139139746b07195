"""Every advantage estimator, policy loss and rollout correction in a real step: what it is given, what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from verl_algos import advantages
from verl_algos.estimators import ESTIMATORS, SHARED_OPTIONS
from verl_algos.loss_options import POLICY_LOSS_OPTIONS
from verl_cli.build import build
from verl_cli.config import ConfigError, resolve
from verl_cli.config.algorithm_rules import ESTIMATOR_OPTION_KEYS
from verl_cli.errors import UserError
from verl_cli.losses import ActorLoss
from verl_cli.phases import Step, run_phases
from verl_cli.ppo import PPO
from verl_cli.trainer import fit
from verl_engine import Denominators
from verl_rollout import Request, Sampling

Overrides = Callable[..., list[str]]

ACTOR = "actor_rollout_ref__actor"
CORRECTION = "algorithm__rollout_correction"
LOSS_MODE = f"{ACTOR}__policy_loss__loss_mode"
FLOAT64 = {
    f"{ACTOR}__fsdp_config__model_dtype": "fp64",
    f"{ACTOR}__fsdp_config__dtype": "float64",
    "critic__fsdp__model_dtype": "fp64",
    "critic__fsdp__dtype": "float64",
    "actor_rollout_ref__rollout__dtype": "float64",
}
GDPO = {"algorithm__adv_estimator": "gdpo"}
SHORT = {"trainer__total_training_steps": 1, "trainer__val_before_train": "false"}

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": sum(map(ord, solution_str)) % 7 / 7, "length": len(solution_str)}
"""
OWN = """
import torch

def ones(logprobs):
    return torch.ones_like(logprobs) + 0 * logprobs, {}

def scaled(logprobs, advantages, scale):
    return -scale * advantages * logprobs, {"scale": (torch.tensor(scale), torch.tensor(1.0))}

def per_token_metric(logprobs, advantages):
    return -advantages * logprobs, {"distance": (logprobs.detach().abs(), logprobs.numel())}

def uncounted_metric(logprobs, advantages):
    return -advantages * logprobs, {"distance": (torch.tensor(1.0), None)}

def taken_metric(logprobs, advantages):
    return -advantages * logprobs, {"pg_loss": (torch.tensor(7.0), 1)}

def raises(logprobs):
    raise KeyError("mine")

def estimator(token_rewards, mask, cu_seqlens, factor=1.0):
    return factor * mask, factor * mask

def with_values(token_rewards, values, mask):
    return (token_rewards - values) * mask, token_rewards * mask

def with_weights(token_rewards, mask, rollout_weights):
    return rollout_weights * mask, token_rewards * mask

def with_everything(token_rewards, mask, group, baseline, reward_components, old_logprobs, sum_pi_squared):
    return sum_pi_squared * mask, old_logprobs * mask

def unknown_input(token_rewards, mask, entropy):
    return token_rewards, token_rewards
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with reward.py, which reports two numbers, and own.py."""
    (tmp_path / "reward.py").write_text(REWARD)
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


@pytest.fixture
def overrides(overrides: Overrides) -> Overrides:
    """The short run's command line, with the critic's default learning rate: most runs here have none."""
    return lambda **changes: [text for text in overrides(**changes) if not text.startswith("critic.optim.lr")]


def metrics_of(overrides: list[str]) -> tuple[list[dict[str, float]], Path]:
    """The metrics of each step of a whole run, and its directory."""
    config = resolve(overrides).config
    run_dir = Path(config.trainer.default_local_dir)
    fit(build(config))
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [row["data"] for row in rows if row["step"] > 0], run_dir


def before_update(overrides: list[str]) -> tuple[PPO, Step]:
    """A step up to its advantages."""
    parts = build(resolve(overrides).config)
    algorithm = PPO(parts.config, parts.controller, parts.workers, parts.scorer, parts.tokenizer)
    _, prompts = next(parts.loader.batches(1))
    step = Step(number=1, epoch=0, prompts=prompts)
    phases = algorithm.phases()
    with parts.scorer:
        run_phases(phases[: [phase.name for phase in phases].index("adv") + 1], step)
    return algorithm, step


def estimated(files: Path, name: str, **others: Any) -> dict[str, Any]:
    keys = {"gdpo": {"algorithm__gdpo_reward_keys": "[score,length]"}}.get(name, {})
    return {
        "algorithm__adv_estimator": name,
        "algorithm__use_kl_in_reward": "false",
        "reward__custom_reward_function__path": files / "reward.py",
        **keys,
        **others,
    }


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_every_estimator_trains(overrides: Overrides, files: Path, name: str) -> None:
    rows, _ = metrics_of(overrides(**estimated(files, name, **SHORT)))
    (row,) = rows
    assert np.isfinite(list(row.values())).all()
    assert row["critic/advantages/max"] > row["critic/advantages/min"]
    assert row["actor/grad_norm"] > 0
    assert ("critic/vf_loss" in row) == (name == "gae")


def test_remax_compares_with_the_reward_of_the_likeliest_response(overrides: Overrides, files: Path) -> None:
    algorithm, step = before_update(overrides(**estimated(files, "remax")))
    greedy = algorithm.workers["rollout"].call(
        "generate",
        [Request(prompt.prompt_ids, key=(9, index)) for index, prompt in enumerate(step.prompts)],
        sampling=Sampling(max_tokens=4, temperature=0.0),
    )
    texts = [algorithm.tokenizer.decode(completion.token_ids, skip_special_tokens=True) for completion in greedy]
    expected = np.array([sum(map(ord, text)) % 7 / 7 for text in texts])
    group = np.asarray(step.batch["group"])
    np.testing.assert_allclose(step.batch["baseline"], expected[group], rtol=1e-6)
    for index, rows in enumerate(step.batch.per_sequence("advantages")):
        sampled = rows[step.batch.per_sequence("sampled_mask")[index]]
        np.testing.assert_allclose(sampled, step.batch["reward"][index] - expected[group[index]], rtol=1e-5, atol=1e-6)
    assert step.metrics["adv/baseline/mean"] == pytest.approx(expected.mean())


def test_gdpo_compares_each_reported_reward_by_itself(overrides: Overrides, files: Path) -> None:
    weights = {"algorithm__gdpo_reward_weights": "[1,0.5]"}
    _, step = before_update(overrides(**estimated(files, "gdpo", **weights)))
    components = {"score": step.batch["reward"], "length": step.batch["reward/length"]}
    expected, _ = advantages.gdpo(
        token_rewards=torch.tensor(step.batch["token_rewards"]),
        group=torch.tensor(step.batch["group"]),
        reward_components={name: torch.tensor(column) for name, column in components.items()},
        reward_weights={"length": 0.5},
        mask=torch.tensor(step.batch["sampled_mask"]),
        cu_seqlens=torch.tensor(step.batch.cu_seqlens),
    )
    np.testing.assert_allclose(step.batch["advantages"], expected.numpy(), atol=1e-6)


def test_gdpo_says_which_reward_is_not_reported(overrides: Overrides, files: Path) -> None:
    keys = {"algorithm__gdpo_reward_keys": "[score,format]"}
    with pytest.raises(UserError, match="'format', which the reward does not report; it reports length, score"):
        before_update(overrides(**estimated(files, "gdpo", **keys)))


def test_token_baselines_get_the_sum_of_squared_probabilities(overrides: Overrides, files: Path, assets: Path) -> None:
    _, step = before_update(overrides(**estimated(files, "optimal_token_baseline")))
    model = AutoModelForCausalLM.from_pretrained(assets / "model")
    for ids, mask, squared in zip(
        *(step.batch.per_sequence(name) for name in ("input_ids", "sampled_mask", "sum_pi_squared")), strict=True
    ):
        with torch.no_grad():
            probabilities = model(torch.tensor(ids)[None]).logits[0, :-1].softmax(-1)
        expected = np.where(mask[1:], probabilities.square().sum(-1).numpy(), 0.0)
        np.testing.assert_allclose(squared[1:], expected, atol=1e-5)


@pytest.mark.alone
def test_an_estimator_of_ones_own_gets_what_it_names(overrides: Overrides, files: Path) -> None:
    own = estimated(files, f"{files / 'own.py'}:with_everything", algorithm__gdpo_reward_keys="[length]")
    _, step = before_update(overrides(**own))
    mask = np.asarray(step.batch["sampled_mask"])
    np.testing.assert_array_equal(step.batch["advantages"][mask], step.batch["sum_pi_squared"][mask])
    np.testing.assert_array_equal(step.batch["returns"][mask], step.batch["old_logprobs"][mask])
    _, step = before_update(
        overrides(**estimated(files, f"{files / 'own.py'}:estimator", algorithm__adv_estimator_kwargs="{factor: 3}"))
    )
    assert set(np.unique(step.batch["advantages"])) == {0.0, 3.0}
    _, step = before_update(overrides(**estimated(files, f"{files / 'own.py'}:with_values", critic__enable="true")))
    np.testing.assert_allclose(step.batch["advantages"], step.batch["token_rewards"] - step.batch["values"], atol=1e-6)
    weighted = {f"{CORRECTION}__rollout_is": "token"}
    _, step = before_update(overrides(**estimated(files, f"{files / 'own.py'}:with_weights", **weighted)))
    np.testing.assert_array_equal(step.batch["advantages"], step.batch["rollout_weights"])


@pytest.mark.parametrize(
    ("function", "others", "words"),
    [
        ("with_values", {}, ("values (per token, the critic's value", "set critic.enable=true")),
        ("with_everything", {}, ("reward_components", "algorithm.gdpo_reward_keys")),
        ("with_weights", {}, ("rollout_weights", "rollout_is")),
        ("with_weights", {f"{CORRECTION}__bypass_mode": "true"}, ("rollout_weights",)),
        ("unknown_input", {}, ("entropy: give it in algorithm.adv_estimator_kwargs",)),
        ("estimator", {"critic__enable": "true"}, ("takes no values",)),
        ("estimator", {"algorithm__gamma": 0.5}, ("algorithm.gamma=0.5 has no effect", "no parameter gamma")),
        ("estimator", {"algorithm__adv_estimator_kwargs": "{facto: 3}"}, ("facto", "factor")),
        ("no_such", {}, ("no function 'no_such'", "with_values")),
    ],
)
def test_an_estimator_that_cannot_be_supplied_is_refused(
    overrides: Overrides, files: Path, function: str, others: dict[str, Any], words: tuple[str, ...]
) -> None:
    config = resolve(overrides(**estimated(files, f"{files / 'own.py'}:{function}", **others))).config
    with pytest.raises(UserError) as caught:
        build(config)
    for word in words:
        assert word in str(caught.value)
    assert not (files / "run").exists()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"algorithm__adv_estimator": "rlooo"}, ("rlooo", "Did you mean rloo?")),
        ({"algorithm__adv_estimator": "dr_grpo"}, ("algorithm.norm_adv_by_std_in_grpo=false",)),
        ({"algorithm__adv_estimator": "gdpo"}, ("reward_components", "algorithm.gdpo_reward_keys=[acc,format]")),
        ({"algorithm__adv_estimator": "opo", "actor_rollout_ref__rollout__n": 1}, ("opo", "2 or more")),
        ({"algorithm__adv_estimator": "rloo", "critic__enable": "true"}, ("trained for nothing",)),
        ({"critic__enable": "false"}, ("needs the values of a critic",)),
        ({"algorithm__adv_estimator_kwargs": "{compat: true}"}, ("compat", "whiten")),
        ({"algorithm__adv_estimator_kwargs": "{gamma: 0.9}"}, ("Set algorithm.gamma",)),
        (
            {**GDPO, "algorithm__gdpo_reward_keys": "[a]", "algorithm__use_kl_in_reward": "true"},
            ("would be lost", "use_kl_loss=true"),
        ),
        (
            {**GDPO, "algorithm__gdpo_reward_keys": "[a,b]", "algorithm__gdpo_reward_weights": "[1]"},
            ("1 weights for the 2 rewards",),
        ),
        ({"algorithm__adv_estimator": "dapo"}, ("DAPO is", "filter_groups.enable=true", "clip_ratio_high=0.28")),
        ({"algorithm__adv_estimator": "PPO"}, ("PPO is algorithm.adv_estimator=gae",)),
        ({"algorithm__adv_estimator": "GMPO"}, ("GMPO is a policy loss", "loss_mode=geo_mean")),
        ({LOSS_MODE: "grpo"}, ("grpo is an advantage estimator: set algorithm.adv_estimator=grpo",)),
        ({LOSS_MODE: "GSPOO"}, ("GSPOO", "Did you mean gspo?")),
        ({LOSS_MODE: "gspo", f"{ACTOR}__clip_ratio_low": 10}, ("clip_ratio_low=1 for no bound below",)),
        ({LOSS_MODE: "vanila"}, ("vanila", "Did you mean vanilla?", "file.py:function")),
        ({LOSS_MODE: "dro"}, ("dro_beta", "no default")),
        ({LOSS_MODE: "gspo", f"{ACTOR}__loss_agg_mode": "token-mean"}, ("whole sequences", "seq-mean-token-mean")),
        ({LOSS_MODE: "clip_cov", f"{ACTOR}__policy_loss__clip_cov_lb": 9}, ("clip_cov_ub=5.0", "never act")),
        ({LOSS_MODE: "vanilla", f"{ACTOR}__clip_ratio_c": 1}, ("above 1", "vanilla")),
        ({LOSS_MODE: "dppo_tv", f"{ACTOR}__clip_ratio_high": 2}, ("within [0, 1]", "dppo_tv")),
        ({f"{CORRECTION}__rollout_is": "tokens"}, ("token, sequence, geometric",)),
        ({f"{CORRECTION}__rollout_is": "token", f"{CORRECTION}__rollout_is_threshold": "5_2"}, ("5_2",)),
        ({f"{CORRECTION}__rollout_rs": "seq_k1", f"{CORRECTION}__rollout_rs_threshold": 2}, ("seq_k1", "seq_sum_k1")),
        ({f"{CORRECTION}__rollout_rs": "seq_sum_k1"}, ("rollout_rs_threshold",)),
        ({f"{CORRECTION}__preset": "decoupled"}, ("decoupled", "decoupled_token_is")),
        (
            {f"{CORRECTION}__bypass_mode": "true", f"{CORRECTION}__rollout_is": "token"},
            ("own ratio is the importance weight",),
        ),
    ],
)  # fmt: skip
def test_keys_that_do_not_fit_together_are_refused(
    overrides: Overrides, keys: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(overrides(**keys))
    (problem,) = caught.value.problems
    for word in words:
        assert word in problem


def test_the_published_bounds_of_cispo_are_taken(overrides: Overrides) -> None:
    given = {LOSS_MODE: "cispo", f"{ACTOR}__clip_ratio_low": 10, f"{ACTOR}__clip_ratio_high": 0.2}
    assert resolve(overrides(**given)).config.actor_rollout_ref.actor.clip_ratio_low == 10


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("GRPO", "grpo"),
        ("REINFORCE++", "reinforce_plus_plus"),
        ("reinforce++-baseline", "reinforce_plus_plus_baseline"),
        ("OTB", "optimal_token_baseline"),
        ("Grpo", "grpo"),
    ],
)
def test_the_papers_spelling_of_an_estimator_is_its_alias(overrides: Overrides, written: str, name: str) -> None:
    resolved = resolve(overrides(algorithm__adv_estimator=written))
    assert resolved.config.algorithm.adv_estimator == name
    assert any(name in notice for notice in resolved.notices)


@pytest.mark.parametrize(("written", "name"), [("SAPO", "sapo"), ("GMPO", "geo_mean"), ("Clip-Cov", "clip_cov")])
def test_the_papers_spelling_of_a_policy_loss_is_its_alias(overrides: Overrides, written: str, name: str) -> None:
    resolved = resolve(overrides(**{LOSS_MODE: written}))
    assert resolved.config.actor_rollout_ref.actor.policy_loss.loss_mode == name
    assert any(f"={name}, and was taken for that" in notice for notice in resolved.notices)
    own = f"{ACTOR}__policy_loss__loss_mode"
    assert resolve(overrides(**{own: "Own.py:PPO"})).config.policy_loss == "Own.py:PPO"


def test_what_is_seldom_meant_is_said(overrides: Overrides) -> None:
    (notice,) = resolve(overrides(**{LOSS_MODE: "gspo"})).notices
    assert "3e-4" in notice
    assert not resolve(
        overrides(**{LOSS_MODE: "gspo", f"{ACTOR}__clip_ratio_low": 3e-4, f"{ACTOR}__clip_ratio_high": 4e-4})
    ).notices
    keys = {f"{ACTOR}__use_kl_loss": "true", "algorithm__use_kl_in_reward": "false"}
    (notice,) = resolve(overrides(**keys, **{f"{ACTOR}__kl_loss_type": "k1"})).notices
    assert "k1+" in notice
    assert not resolve(overrides(**keys, **{f"{ACTOR}__kl_loss_type": "k3+"})).notices


@pytest.mark.parametrize("name", sorted(POLICY_LOSS_OPTIONS))
def test_every_policy_loss_trains_alike_however_its_mini_batches_are_cut(
    overrides: Overrides, tmp_path: Path, name: str
) -> None:
    needed = {
        "dro": {f"{ACTOR}__policy_loss__dro_beta": 0.5},
        "clip_cov": {f"{ACTOR}__policy_loss__clip_cov_ratio": 0.2, f"{ACTOR}__policy_loss__clip_cov_lb": -10},
        "kl_cov": {f"{ACTOR}__policy_loss__kl_cov_ratio": 0.2},
    }.get(name, {})
    keys = {LOSS_MODE: name, **needed, **FLOAT64, **SHORT, f"{ACTOR}__ppo_epochs": 2}
    rows = []
    for sequences in ("null", 3):
        cut = {f"{ACTOR}__ppo_micro_batch_size_per_gpu": sequences}
        (row,), _ = metrics_of(overrides(**keys, **cut, trainer__default_local_dir=tmp_path / str(sequences)))
        rows.append({key: value for key, value in row.items() if key.startswith("actor/") and "memory" not in key})
    assert np.isfinite(list(rows[0].values())).all()
    assert rows[0]["actor/grad_norm"] > 0
    assert rows[0] == pytest.approx(rows[1], rel=1e-9, abs=1e-10)


def test_every_shared_option_has_a_key_or_is_given_among_the_estimators_own() -> None:
    assert set(SHARED_OPTIONS) == {*ESTIMATOR_OPTION_KEYS, "whiten"}


def test_clip_ratio_c_follows_the_loss(overrides: Overrides) -> None:
    """Verl-facts 7.6: dppo intends a truncation at 20, and the original's configuration always supplies 3."""
    for name, bound in (("vanilla", 3.0), ("dppo_tv", 20.0), ("dppo_kl", 20.0), ("gspo", None)):
        assert resolve(overrides(**{LOSS_MODE: name})).config.actor_rollout_ref.actor.clip_ratio_c == bound
    config = resolve(overrides(**{LOSS_MODE: "dppo_kl", f"{ACTOR}__clip_ratio_c": 7})).config
    assert config.actor_rollout_ref.actor.clip_ratio_c == 7


def test_a_policy_loss_of_ones_own_gets_its_own_options(overrides: Overrides, files: Path) -> None:
    keys = {LOSS_MODE: f"{files / 'own.py'}:scaled", f"{ACTOR}__policy_loss__loss_kwargs": "{scale: 2.5}"}
    (row,), _ = metrics_of(overrides(**keys, **SHORT))
    assert row["actor/scale"] == 2.5
    config = resolve(
        overrides(**{LOSS_MODE: f"{files / 'own.py'}:scaled"}, trainer__default_local_dir=files / "other")
    ).config
    with pytest.raises(UserError, match="scale"):
        build(config)
    assert not (files / "other").exists()


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("per_token_metric", r"the sum of its metric 'distance' is a tensor of shape \(3,\): .* single numbers"),
        ("uncounted_metric", "the count of its metric 'distance' is a NoneType: .* single numbers"),
        ("taken_metric", "a metric 'pg_loss', which the run itself reports as actor/pg_loss. Rename it"),
        ("raises", r"KeyError: 'mine' \(at .*own.py, line \d+, in raises: `raise KeyError"),
    ],
)
def test_what_a_policy_loss_of_ones_own_reports_wrongly_is_told(
    overrides: Overrides, files: Path, function: str, told: str
) -> None:
    """A metric that is no pair of numbers used to end the run as a defect, and one named pg_loss stood for the loss."""
    loss = ActorLoss.of(resolve(overrides(**{LOSS_MODE: f"{files / 'own.py'}:{function}"})).config)
    column = torch.tensor([-0.5, -1.0, -1.5])
    columns = {
        "old_logprobs": column,
        "advantages": column,
        "loss_mask": torch.ones(3, dtype=torch.bool),
        "cu_seqlens": torch.tensor([0, 1, 3]),
    }
    with pytest.raises(UserError, match=told) as error:
        loss({"logprobs": column.clone().requires_grad_()}, columns, Denominators(tokens=3, sequences=2))
    assert "verl_cli" not in str(error.value), "the line of the check tells the function's author nothing"


@pytest.mark.parametrize("bypass", ["false", "true"])
@pytest.mark.parametrize("criterion", ["token_k2", "seq_max_k2"])
def test_rejected_tokens_are_in_neither_numerator_nor_denominator(
    overrides: Overrides, files: Path, bypass: str, criterion: str
) -> None:
    """A loss of 1 for every token has a mean of exactly 1 if one mask drives both. The bound is within rounding, so
    that about half of what was sampled is rejected."""
    keys = {
        LOSS_MODE: f"{files / 'own.py'}:ones",
        f"{CORRECTION}__rollout_rs": criterion,
        f"{CORRECTION}__rollout_rs_threshold": 1e-15,
        f"{CORRECTION}__bypass_mode": bypass,
        **SHORT,
    }
    (row,), _ = metrics_of(overrides(**keys))
    assert 0.0 < row["rollout_corr/rollout_rs_masked_fraction"] < 1.0
    assert row["actor/pg_loss"] == pytest.approx(1.0, abs=1e-6)


def test_a_correction_edits_the_loss_mask_and_keeps_what_was_sampled(overrides: Overrides) -> None:
    keys = {
        f"{CORRECTION}__preset": "decoupled_token_is",
        f"{CORRECTION}__rollout_rs": "token_k2",
        f"{CORRECTION}__rollout_rs_threshold": 1e-15,
    }
    algorithm, step = before_update(overrides(**keys))
    sampled, trained = np.asarray(step.batch["sampled_mask"]), np.asarray(step.batch["loss_mask"])
    assert algorithm.config.algorithm.rollout_correction.rollout_is == "token"
    assert 0 < trained.sum() < sampled.sum()
    ratio = np.exp(step.batch["old_logprobs"].astype(np.float64) - step.batch["rollout_logprobs"])
    np.testing.assert_allclose(step.batch["rollout_weights"], np.where(trained, ratio, 0.0), rtol=1e-6)
    assert step.batch["advantages"][sampled & ~trained].any()  # a rejected token still has its share in the returns


def test_bypass_mode_makes_one_forward_pass_less(overrides: Overrides) -> None:
    keys = {f"{CORRECTION}__bypass_mode": "true"}
    _, step = before_update(overrides(**keys))
    np.testing.assert_array_equal(step.batch["old_logprobs"], step.batch["rollout_logprobs"])
    assert "actor/entropy" not in step.metrics
    (row,), _ = metrics_of(overrides(**keys, **SHORT))
    assert row["actor/grad_norm"] > 0
    assert not any(name.startswith("rollout_corr/") for name in row)


def test_bypass_with_reinforce_weights_the_plain_policy_gradient(overrides: Overrides, tmp_path: Path) -> None:
    """In one mini-batch the weights are those of the sampling policy: 1 up to rounding, so it is the loss gpg."""
    one = {**SHORT, f"{ACTOR}__ppo_mini_batch_size": 8}
    bypass = {f"{CORRECTION}__preset": "bypass_pg_is"}
    (row,), _ = metrics_of(overrides(**one, **bypass, trainer__default_local_dir=tmp_path / "bypass"))
    (plain,), _ = metrics_of(overrides(**one, **{LOSS_MODE: "gpg"}, trainer__default_local_dir=tmp_path / "plain"))
    assert row["actor/pg_loss"] == pytest.approx(plain["actor/pg_loss"], rel=1e-4)
    assert row["actor/grad_norm"] == pytest.approx(plain["actor/grad_norm"], rel=1e-4)
    assert row["rollout_corr/rollout_is_mean"] == pytest.approx(1.0, abs=1e-4)


def test_the_mismatch_is_measured_in_every_step(overrides: Overrides) -> None:
    (row,), _ = metrics_of(overrides(**SHORT))
    assert row["training/rollout_probs_diff_valid"] == 1.0
    assert 0.0 <= row["training/rollout_probs_diff_mean"] <= row["training/rollout_probs_diff_max"] < 1e-4
    assert row["training/rollout_actor_probs_pearson_corr"] > 0.999


def test_a_value_loss_without_clip(overrides: Overrides) -> None:
    (row,), _ = metrics_of(overrides(**SHORT, critic__cliprange_value="null"))
    assert row["critic/vf_loss"] > 0
    assert "critic/vf_clipfrac" not in row


@pytest.mark.parametrize("text", ["1_5", "0.5_5", "0.5_5.0"])
def test_a_pair_of_bounds_is_no_number(overrides: Overrides, tmp_path: Path, text: str) -> None:
    """Hydra and YAML read 1_5 as 15 and 0.5_5 as 0.55."""
    keys = {f"{CORRECTION}__rollout_is": "token", f"{CORRECTION}__rollout_is_threshold": text}
    assert resolve(overrides(**keys)).config.algorithm.rollout_correction.rollout_is_threshold == text
    file = tmp_path / "run.yaml"
    file.write_text(f"algorithm: {{rollout_correction: {{rollout_is: token, rollout_is_threshold: {text}}}}}\n")
    with pytest.raises(ConfigError, match="may be one number to YAML"):
        resolve(overrides(), config_file=file)
    file.write_text(file.read_text().replace(text, f'"{text}"'))
    config = resolve(overrides(), config_file=file).config
    assert config.algorithm.rollout_correction.rollout_is_threshold == text
