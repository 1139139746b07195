"""From a resolved configuration to everything a run needs: cheap checks first, models last, nothing written."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from transformers import AutoConfig
from verl_data import Prompt, PromptLoader
from verl_engine import EngineConfig, FsdpEngine, OptimConfig
from verl_rollout import HfRollout

from verl_cli.config import ActorConfig, CriticConfig, RunConfig
from verl_cli.controller import Controller, LocalController, RoleSpec, WorkerGroup
from verl_cli.errors import UserError
from verl_cli.models import check_same_vocabulary, locate_model, locate_models
from verl_cli.own_functions import check_own_functions
from verl_cli.reported import unreported, wanted_numbers
from verl_cli.reward_workers import workers_warning
from verl_cli.run.resume import Start, find_start
from verl_cli.run.run_dir import RunDir
from verl_cli.scoring import Scorer, load_scorer
from verl_cli.tokenizer import load_tokenizer
from verl_cli.tracking import check_loggers

#: Training prompts among which one of each data source is looked for, and how many are rendered at a time.
_LOOKED_AT, _TOGETHER = 1000, 64


@dataclass(frozen=True)
class Parts:
    """What a trainer works with."""

    config: RunConfig
    run_dir: RunDir
    tokenizer: Any
    scorer: Scorer
    loader: PromptLoader
    validation_prompts: list[Prompt]
    controller: Controller
    workers: Mapping[str, WorkerGroup]
    total_steps: int
    start: Start
    """Where the run begins; the loader already stands there."""
    notices: list[str]
    """What the user should know before the run starts, one line each."""


def build(config: RunConfig, controller: Controller | None = None) -> Parts:
    """Open the data, load the reward function and start the workers; raises before anything is written.

    Raises NothingLeft if the run directory holds this run, finished.
    """
    quiet_transformers()
    check_loggers(config.trainer.logger)
    check_own_functions(config)
    # A function is loaded at once; a model, like the others, after everything that may be wrong at less cost.
    scorer = None if config.reward.reward_model.enable else load_scorer(config.reward, device=device_of(config))
    run_dir = RunDir(Path(config.trainer.default_local_dir).expanduser().absolute())
    with run_dir.lock():  # a directory in use is found out now, not after the models are loaded
        start = find_start(config, run_dir)
    located = locate_models(config, critic=config.needs_critic)
    tokenizer = load_tokenizer(located.actor_rollout_ref.model)
    if config.needs_critic:
        check_same_vocabulary(located.actor_rollout_ref.model.path, located.critic.model.path)
    loader = PromptLoader(config.data.train_files, tokenizer, config.data, training=True)
    validation = PromptLoader(config.data.val_files, tokenizer, config.data, training=False)
    if scorer is not None:
        scorer.check(loader.data_sources | validation.data_sources)
    total_steps = config.trainer.total_training_steps or loader.steps_per_epoch * config.trainer.total_epochs
    if config.needs_critic and config.trainer.critic_warmup >= total_steps:
        raise UserError(
            f"trainer.critic_warmup={config.trainer.critic_warmup} leaves the actor none of {total_steps} steps. "
            f"Lower it, or train longer (trainer.total_training_steps, trainer.total_epochs)."
        )
    start.check_left(config, run_dir, total_steps)
    if start.state:
        loader.load_state_dict(start.state["loader"])
    if scorer is not None and not config.trainer.val_only:
        check_reported(config, scorer, loader)
    scorer = scorer or load_scorer(config.reward, device=device_of(config))
    controller = controller or LocalController()
    workers = controller.start(roles(located, total_steps))
    return Parts(
        config=config,
        run_dir=run_dir,
        tokenizer=tokenizer,
        scorer=scorer,
        loader=loader,
        validation_prompts=validation.all_prompts(),
        controller=controller,
        workers=workers,
        total_steps=total_steps,
        start=start,
        notices=[
            *start.notices,
            *([warning] if (warning := workers_warning(config.reward)) else []),
            *length_notices(located, {"training": loader, "validation": validation}),
        ],
    )


def check_reported(config: RunConfig, scorer: Scorer, loader: PromptLoader) -> None:
    """Try the reward function on a prompt of each data source, if the algorithm needs more of it than the score.

    Raises:
        UserError: it does not report what the configuration asks for.
    """
    if not (wanted := wanted_numbers(config.algorithm)):
        return
    found: dict[str, Prompt] = {}
    prompts = chain.from_iterable(loader.in_order(_TOGETHER))
    for prompt in islice(prompts, _LOOKED_AT):
        found.setdefault(prompt.data_source, prompt)
        if found.keys() >= loader.data_sources.keys():
            break
    if problems := list(unreported(scorer, list(found.values()), wanted)):
        raise UserError("\n\n".join(problems))


def length_notices(config: RunConfig, loaders: Mapping[str, PromptLoader]) -> Iterator[str]:
    """What limits on length do to prompts (of each loader, by what its prompts are called) and to responses."""
    for name, loader in loaders.items():
        if loader.filtered:
            yield (
                f"{loader.filtered} {name} prompts are longer than data.max_prompt_length and left out "
                f"(data.filter_overlong_prompts=true); {len(loader)} remain."
            )
    model = config.actor_rollout_ref.model
    path = locate_model(model.path, "actor_rollout_ref.model.path")
    settings = AutoConfig.from_pretrained(path, trust_remote_code=model.trust_remote_code)
    own = getattr(settings.get_text_config(), "max_position_embeddings", None)
    limit = model.override_config.get("max_position_embeddings", own)
    wanted = config.data.max_prompt_length + config.data.max_response_length
    if limit is not None and limit < wanted:
        yield (
            f"The model has {limit} positions, fewer than data.max_prompt_length + data.max_response_length = {wanted} "
            f"tokens: responses that reach position {limit} end there."
        )


def roles(config: RunConfig, total_steps: int) -> dict[str, RoleSpec]:
    """The roles that this configuration uses, and how a worker makes each."""
    arr, critic, warmup = config.actor_rollout_ref, config.critic, config.trainer.critic_warmup
    actor = arr.actor
    specs = {
        "actor": _engine(
            config,
            head="lm",
            model=arr.model,
            fsdp=actor.fsdp_config,
            optim=_with_length(actor.optim, total_steps - warmup, actor, config),
            **_micro_batches(
                actor.use_dynamic_bsz, actor.ppo_micro_batch_size_per_gpu, actor.ppo_max_token_len_per_gpu
            ),
        )
    }
    if config.needs_reference:
        specs["ref"] = _engine(
            config,
            head="lm",
            model=arr.model,
            fsdp=arr.ref.fsdp_config,
            optim=None,
            **_micro_batches(
                arr.ref.log_prob_use_dynamic_bsz,
                arr.ref.log_prob_micro_batch_size_per_gpu,
                arr.ref.log_prob_max_token_len_per_gpu,
            ),
        )
    if config.needs_critic:
        specs["critic"] = _engine(
            config,
            head="value",
            model=critic.model,
            fsdp=critic.fsdp,
            optim=_with_length(critic.optim, total_steps, critic, config),
            **_micro_batches(
                critic.use_dynamic_bsz, critic.ppo_micro_batch_size_per_gpu, critic.ppo_max_token_len_per_gpu
            ),
        )
    specs["rollout"] = rollout_role(config)
    return specs


def rollout_role(config: RunConfig) -> RoleSpec:
    """How a worker makes the engine that generates."""
    arr = config.actor_rollout_ref
    return RoleSpec(
        HfRollout,
        {
            "model_path": arr.model.path,
            "device": device_of(config),
            "dtype": arr.rollout.dtype,
            "max_num_seqs": arr.rollout.max_num_seqs,
            "trust_remote_code": arr.model.trust_remote_code,
            "override_config": arr.model.override_config,
        },
    )


def device_of(config: RunConfig) -> Literal["cpu", "cuda"]:
    """The device to run on: a GPU where there is one, unless `trainer.device` says otherwise."""
    return config.trainer.device or ("cuda" if torch.cuda.is_available() else "cpu")


def quiet_transformers() -> None:
    """Take away transformers' progress bars: several models load in turn, and the run has a progress of its own."""
    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()


def _engine(config: RunConfig, *, optim: OptimConfig | None, **arguments: Any) -> RoleSpec:
    engine = EngineConfig(
        optim=optim, device=device_of(config), temperature=config.actor_rollout_ref.rollout.temperature, **arguments
    )
    return RoleSpec(FsdpEngine, {"config": engine})


def _micro_batches(dynamic: bool, sequences: int | None, tokens: int) -> dict[str, int | None]:
    """Micro-batches are cut by a number of sequences where one is given, by tokens otherwise."""
    by_tokens = dynamic or sequences is None
    return {
        "max_tokens_per_micro_batch": tokens if by_tokens else None,
        "max_sequences_per_micro_batch": None if by_tokens else sequences,
    }


def _with_length(optim: OptimConfig, steps: int, owner: ActorConfig | CriticConfig, config: RunConfig) -> OptimConfig:
    """The optimiser with the length of its schedule: its optimiser steps in `steps` training steps."""
    mini_batches = config.data.train_batch_size // owner.ppo_mini_batch_size
    return replace(optim, total_training_steps=steps * mini_batches * owner.ppo_epochs)


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
