"""Whether two configurations are of the same run: what a run may change while it goes on."""

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from verl_cli.config import ConfigError, RunConfig, resolve
from verl_cli.config.keys import flatten
from verl_cli.errors import UserError
from verl_cli.run.checkpoints import complete
from verl_cli.run.own_code import own_files

_LOOK_BYTES = 2**20
#: Between a key and a module that the file it names imports.
_IMPORTS = " imports "
_ACTOR, _CRITIC, _REF = "actor_rollout_ref.actor", "critic", "actor_rollout_ref.ref"
_ROLLOUT = "actor_rollout_ref.rollout"
#: Keys, or sections, that a run may go on with changed: how long it is, what it shows and where, how it is cut for
#: memory. The training files are here because the loader compares their content.
_MAY_CHANGE = (
    "actor_rollout_ref.model.enable_gradient_checkpointing",
    "critic.model.enable_gradient_checkpointing",
    f"{_ACTOR}.fsdp_config.reshard_after_forward",
    f"{_ACTOR}.ppo_max_token_len_per_gpu",
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
    f"{_ACTOR}.use_dynamic_bsz",
    f"{_CRITIC}.fsdp.reshard_after_forward",
    f"{_CRITIC}.ppo_max_token_len_per_gpu",
    f"{_CRITIC}.ppo_micro_batch_size_per_gpu",
    f"{_CRITIC}.use_dynamic_bsz",
    f"{_REF}.fsdp_config.reshard_after_forward",
    f"{_REF}.log_prob_max_token_len_per_gpu",
    f"{_REF}.log_prob_micro_batch_size_per_gpu",
    f"{_REF}.log_prob_use_dynamic_bsz",
    f"{_ROLLOUT}.max_num_seqs",
    f"{_ROLLOUT}.val_kwargs",
    "algorithm.filter_groups.max_num_gen_batches",  # a step gets the same batch, or none
    "data.train_files",
    "data.val_files",
    "data.val_max_samples",
    "reward.cpu_seconds",
    "reward.memory_mb",
    "reward.num_workers",
    "reward.wall_seconds",
    "trainer.default_hdfs_dir",
    "trainer.default_local_dir",
    "trainer.device",
    "trainer.experiment_name",
    "trainer.health_warnings",
    "trainer.log_val_generations",
    "trainer.logger",
    "trainer.max_actor_ckpt_to_keep",
    "trainer.n_gpus_per_node",
    "trainer.nnodes",
    "trainer.project_name",
    "trainer.resume_from_path",
    "trainer.resume_mode",
    "trainer.save_freq",
    "trainer.test_freq",
    "trainer.total_epochs",
    "trainer.total_training_steps",
    "trainer.val_before_train",
    "trainer.val_only",
)
#: Of these, the ones that a user changes so often, and so harmlessly, that it is not worth a line.
NOT_WORTH_A_LINE = ("trainer.resume_from_path", "trainer.resume_mode")


def stored_config(text: str | None, place: Path | str) -> RunConfig:
    """The configuration that a run wrote at its start."""
    if text is None:
        raise UserError(
            f"{place} holds a run but no config.yaml, so nothing tells whether it is this one. Restore the file, or "
            f"give this run its own directory: trainer.default_local_dir=DIR. A checkpoint of it can be branched off "
            f"from (trainer.resume_mode=path)."
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(text, "utf-8")
        try:
            return resolve([], config_file=path, allow_unused=True).config
        except ConfigError as error:
            raise UserError(
                f"The config.yaml of {place} cannot be read: {'; '.join(error.problems)} Restore it as the run wrote "
                f"it, or give this run its own directory: trainer.default_local_dir=DIR."
            ) from error


def changes(stored: RunConfig, config: RunConfig) -> dict[str, tuple[Any, Any]]:
    """The keys that differ, each with the stored value and the present one."""
    before, now = flatten(stored), flatten(config)
    return {key: (before[key], now[key]) for key in now if before[key] != now[key]}


def allowed_changes(stored: RunConfig, config: RunConfig, place: Path | str, *, in_place: bool) -> Iterator[str]:
    """Yield a line for each change that the run may go on with; UserError for the others."""
    changed = changes(stored, config)
    forbidden = [key for key in changed if not _may_change(key)]
    branches = config.trainer.resume_mode == "path" and not in_place
    if branches and stored.trainer.resume_from_path != config.trainer.resume_from_path:
        forbidden.append("trainer.resume_from_path")
    if forbidden:
        listed = "; ".join(said(key, *changed[key]) for key in forbidden)
        saved = complete(place) if isinstance(place, Path) else []
        newest = saved[-1].path if saved else f"{place}/global_step_N"
        raise UserError(
            f"{place} holds another run than this one, which is neither overwritten nor gone on with: {listed}. Give "
            f"this run its own directory with trainer.default_local_dir=DIR; to begin there with that run's "
            f"checkpoint, give these together: trainer.default_local_dir=DIR trainer.resume_mode=path "
            f"trainer.resume_from_path={newest}."
        )
    for key, (before, now) in changed.items():
        if key not in NOT_WORTH_A_LINE:
            yield said(key, before, now)


def said(key: str, before: Any, now: Any) -> str:
    """A change as a line for the user."""
    return f"{key} was {before} and is now {now}"


def _may_change(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in _MAY_CHANGE)


def content(config: RunConfig) -> dict[str, str]:
    """What the paths of the initial model and of the user's own code hold, by key: the keys do not tell.

    Own code is the file that is named and the modules that it imports from beside it, each under a key of its own.
    Of a model folder the names and sizes of its weights and the first and last MiB of each are looked at, and its
    config.json: enough to notice another model, in no time.
    """
    custom, reward_model = config.reward.custom_reward_function, config.reward.reward_model
    algorithm, loss = config.algorithm.adv_estimator, config.actor_rollout_ref.actor.policy_loss.loss_mode
    code = {
        "algorithm.adv_estimator": algorithm.rpartition(":")[0],
        "actor_rollout_ref.actor.policy_loss.loss_mode": loss.rpartition(":")[0],
        "reward.custom_reward_function.path": custom.path,
        "reward.reward_model.path": (reward_model.path or "").rpartition(":")[0],
    }
    folders = {
        "actor_rollout_ref.model.path": config.actor_rollout_ref.model.path,
        "reward.reward_model.model_path": reward_model.model_path,
    }
    found = {}
    for key, place in code.items():
        for module, file in own_files(place or "").items():
            found[f"{key}{_IMPORTS}{module}" if module else key] = hashlib.sha256(file.read_bytes()).hexdigest()
    for key, place in folders.items():
        if place is not None and (folder := Path(place).expanduser()).is_dir():
            found[key] = _of_model(folder)
    return found


def _of_model(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("config.json")]):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(_LOOK_BYTES))
            file.seek(max(0, size - _LOOK_BYTES))
            digest.update(file.read(_LOOK_BYTES))
    return digest.hexdigest()


def check_same_content(state: Mapping[str, Any], config: RunConfig) -> None:
    """Raise UserError if the initial model or the user's own code is not what the run began with."""
    now = content(config)
    for key, before in state.get("content", {}).items():
        if key in now and now[key] != before:
            setting, imports, module = key.partition(_IMPORTS)
            what = f"The module {module}, which the code of {setting} imports," if imports else f"What {setting} holds"
            raise UserError(
                f"{what} has changed since step {state['step']}, so the run would not be the same. Restore "
                f"it; or branch off with it: trainer.default_local_dir=DIR trainer.resume_mode=path "
                f"trainer.resume_from_path=RUN/global_step_{state['step']}."
            )
