"""A model that is asked, not trained: the configuration of `verl-cli eval` and `generate`, and their parts."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from verl_data import PromptLoader

from verl_cli.build import length_notices, quiet_transformers, rollout_role
from verl_cli.config import ConfigError, Resolved, RunConfig, resolve, text_override
from verl_cli.config.classify import classify, is_default, no_effect
from verl_cli.config.keys import flatten
from verl_cli.config.published import prefixes
from verl_cli.config.reasons import Reason
from verl_cli.config.sources import Setting, parse_overrides
from verl_cli.config.values import show
from verl_cli.controller import Controller, LocalController, WorkerGroup
from verl_cli.errors import UserError
from verl_cli.models import locate_models
from verl_cli.run import checkpoints
from verl_cli.scoring import Scorer
from verl_cli.tokenizer import load_tokenizer

_ROLLOUT = "actor_rollout_ref.rollout"
_TRAINING = Reason("It belongs to training, and nothing is trained here.", "Leave it out.")
_SAMPLING = "Responses are drawn as in validation."
_NO_REWARD = Reason("Nothing is scored here.", "Leave it out, or use verl-cli eval.")
#: Keys, and sections, without effect. The innermost counts; None has an effect.
_REASONS: Mapping[str, Reason | None] = {
    "actor_rollout_ref.actor": _TRAINING,
    "actor_rollout_ref.model": _TRAINING,
    **{
        f"actor_rollout_ref.model.{name}": None
        for name in ("override_config", "path", "tokenizer_path", "trust_remote_code")
    },
    "actor_rollout_ref.ref": _TRAINING,
    **{
        f"{_ROLLOUT}.{name}": Reason(_SAMPLING, f"Set {_ROLLOUT}.val_kwargs.{name}.")
        for name in ("n", "temperature", "top_k", "top_p")
    },
    "algorithm": _TRAINING,
    "critic": _TRAINING,
    "data.order_by": _TRAINING,
    "data.train_batch_size": _TRAINING,
    "data.train_files": _TRAINING,
    "data.train_max_samples": Reason("It belongs to training.", "Set data.val_max_samples."),
    "data.train_weights": _TRAINING,
    "trainer": _TRAINING,
    **dict.fromkeys(("trainer.device", "trainer.n_gpus_per_node", "trainer.nnodes", "trainer.seed")),
}
_REASONS_UNSCORED: Mapping[str, Reason | None] = {**_REASONS, "data.reward_fn_key": _NO_REWARD, "reward": _NO_REWARD}
#: No sequence is too long for training's micro-batches, which do not exist here.
_NO_TRAINING = [f"{section}.ppo_max_token_len_per_gpu={2**31 - 1}" for section in ("actor_rollout_ref.actor", "critic")]


@dataclass(frozen=True)
class Option:
    """An argument of the command that stands for a key."""

    name: str
    """As on the command line."""
    key: str
    value: str | int | float | None
    """None where it was not given."""


@dataclass(frozen=True)
class Inference:
    """A model ready to be asked, and the prompts."""

    tokenizer: Any
    loader: PromptLoader
    controller: Controller
    rollout: WorkerGroup
    notices: list[str]
    """What the user should know before it begins, one line each."""


def sampling_options(n: int | None, temperature: float | None, max_tokens: int | None) -> list[Option]:
    """The options of both commands about how responses are drawn."""
    return [
        Option("--n", f"{_ROLLOUT}.val_kwargs.n", n),
        Option("--temperature", f"{_ROLLOUT}.val_kwargs.temperature", temperature),
        Option("--max-tokens", "data.max_response_length", max_tokens),
    ]


def resolve_inference(
    model: str, file: str, overrides: Sequence[str], options: Sequence[Option], *, scored: bool
) -> Resolved:
    """Resolve the configuration of an evaluation (`scored`) or a generation, by the same keys as training's.

    Raises:
        ConfigError: with everything that is wrong: also keys that only training has, and options that contradict keys.
    """
    given = [
        Option("MODEL", "actor_rollout_ref.model.path", model),
        Option("FILE", "data.val_files", file),
        *(option for option in options if option.value is not None),
    ]
    found: list[str] = []
    if (problem := _repeats_without_sampling(overrides, options)) is not None:
        found.append(problem)
        given = [option for option in given if option.name != "--n"]
    kept = []
    for override in overrides:
        parsed, _ = parse_overrides([override])
        live = classify(parsed).live
        problems = list(_problems_of(live, given, scored))
        found += problems
        only_training = bool(live) and all(_reason(key, scored) for key in live)
        if not problems and not only_training:
            kept.append(override)
    values = [
        text_override(option.key, option.value) if isinstance(option.value, str) else f"{option.key}={option.value}"
        for option in given
    ]
    try:
        resolved = resolve([*_NO_TRAINING, text_override("data.train_files", file), *kept, *values])
    except ConfigError as error:
        raise ConfigError(*found, *error.problems) from error
    if found:
        raise ConfigError(*found)
    return resolved


def _repeats_without_sampling(overrides: Sequence[str], options: Sequence[Option]) -> str | None:
    """What is wrong where several responses are asked for and nothing lets them differ."""
    values = {option.name: option.value for option in options}
    n, temperature = values.get("--n"), values.get("--temperature")
    by_key = any("val_kwargs" in override for override in overrides)
    if isinstance(n, int) and n > 1 and not temperature and not by_key:
        return (
            f"--n {n} needs sampling: at temperature 0 all {n} responses to a prompt are the same. Add "
            f"--temperature 1, or leave --n out."
        )
    return None


def _problems_of(live: Mapping[str, Setting], given: Sequence[Option], scored: bool) -> Iterator[str]:
    """What is wrong here with settings that training would take."""
    for key, setting in live.items():
        if (why := _reason(key, scored)) is not None and not is_default(key, setting.value):
            yield no_effect(key, setting.value, why)
        for option in given:
            if option.key == key and option.value != setting.value:
                yield (
                    f"{option.name} is {show(option.value)}, and {key}={show(setting.value)} says otherwise. Both are "
                    f"the same setting: give one of them."
                )


def _reason(key: str, scored: bool) -> Reason | None:
    """Why a live key has no effect; None if it has one."""
    reasons = _REASONS if scored else _REASONS_UNSCORED
    return next((reasons[prefix] for prefix in prefixes(key) if prefix in reasons), None)


def settings(config: RunConfig, *, scored: bool) -> dict[str, Any]:
    """The keys that have an effect, with their values."""
    return {key: value for key, value in flatten(config).items() if _reason(key, scored) is None}


def open_inference(config: RunConfig, scorer: Scorer | None, reserved: Collection[str] = ()) -> Inference:
    """Open the data and load the model, cheap checks first; without a scorer, rows need a prompt only.

    Columns called like one of `reserved` are an error.
    """
    quiet_transformers()
    _check_is_model(Path(config.actor_rollout_ref.model.path).expanduser())
    located = locate_models(config, critic=False)
    tokenizer = load_tokenizer(located.actor_rollout_ref.model)
    loader = PromptLoader(
        config.data.val_files, tokenizer, config.data, training=False, scored=scorer is not None, reserved=reserved
    )
    if scorer is not None:
        scorer.check(loader.data_sources)
    notices = list(length_notices(located, {"of the": loader}))
    controller = LocalController()
    return Inference(
        tokenizer=tokenizer,
        loader=loader,
        controller=controller,
        rollout=controller.start({"rollout": rollout_role(located)})["rollout"],
        notices=notices,
    )


def _check_is_model(folder: Path) -> None:
    """Point from a run directory or a checkpoint to the model inside."""
    if not folder.is_dir() or (folder / "config.json").exists():
        return
    newest = [checkpoint.path for checkpoint in checkpoints.complete(folder)[-1:]]
    for place in (folder, folder / "actor", *(path / "actor" for path in newest)):
        if (place / "huggingface").is_dir():
            raise UserError(
                f"{folder} is not a Hugging Face folder, but it holds what training wrote. The model is in "
                f"{place / 'huggingface'}: give that folder."
            )


def notice_truncated(truncated: int, config: RunConfig) -> str:
    """A line about prompts that were cut."""
    return (
        f"{truncated} prompts were cut to data.max_prompt_length={config.data.max_prompt_length} tokens "
        f"(data.truncation={config.data.truncation})."
    )


def progress(total: int) -> Callable[[int], None]:
    """Return a function that is told how many of `total` prompts are done, and says so on stderr every few seconds."""
    begun = shown = time.monotonic()

    def show(done: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if done < total and now - shown > 2:
            shown = now
            left = (now - begun) / done * (total - done)
            typer.echo(f"{done} of {total} prompts, {duration(left)} left", err=True)

    return show


def duration(seconds: float) -> str:
    """Write a time for people."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
