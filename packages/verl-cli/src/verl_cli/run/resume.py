"""Where a run begins: at its first step, or behind the newest checkpoint that it or its copies hold.

A resumed run gives what the uninterrupted one would have given. So it must be the same run: a key that changes what is
learnt may not differ from the stored configuration, and rows of metrics and samples behind the checkpoint are cut,
because the run is about to write them again.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_cli.config import RunConfig
from verl_cli.errors import UserError
from verl_cli.run import checkpoints
from verl_cli.run.checkpoints import MARK, Checkpoint
from verl_cli.run.copies import Copies
from verl_cli.run.run_dir import RunDir
from verl_cli.run.same_run import NOT_WORTH_A_LINE, allowed_changes, changes, check_same_content, said, stored_config
from verl_cli.tracking import cut_rows, read_rows

STATE = "trainer_state.json"
STATE_FORMAT = 1


class NothingLeft(Exception):  # noqa: N818 (not an error: the run was finished before)
    """The run is complete; the message says so and how to go on."""


@dataclass(frozen=True)
class Start:
    """Where a run begins."""

    step: int = 0
    """Steps that are done; 0 begins with the initial model."""
    folder: Path | None = None
    """The checkpoint to load; None at step 0, and while it is still among the copies."""
    copies: Copies | None = field(default=None, compare=False)
    """Where to fetch it from."""
    state: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The trainer's own state in it."""
    own: bool = False
    """Whether it goes on with the run of the directory, or of its copies: not anew, and not with another's."""
    notices: tuple[str, ...] = field(default=(), compare=False)

    def check_left(self, config: RunConfig, run_dir: RunDir, total_steps: int) -> None:
        """Raise NothingLeft if all of `total_steps` are done and told, UserError if more than them are done."""
        summary = _summary(run_dir)
        wanted = 0 if config.trainer.val_only else total_steps
        if summary is not None and summary["steps"] >= wanted:
            raise NothingLeft(
                f"Nothing is left to do: the run in {run_dir.path} is complete ({summary['steps']} steps are done, and "
                f"{wanted} are asked for). To train it longer, raise trainer.total_training_steps (or "
                f"trainer.total_epochs); for another run set trainer.default_local_dir=DIR."
            )
        if self.step > total_steps:
            raise UserError(
                f"The run goes on from step {self.step}, and only {total_steps} steps are asked for. Raise "
                f"trainer.total_training_steps (or trainer.total_epochs) to at least {self.step}, which ends the run "
                f"there, or branch off from an earlier checkpoint (trainer.resume_mode=path)."
            )

    def prepare(self, run_dir: RunDir, config_text: str) -> Path | None:
        """Make the run directory what it was at this step, and return the checkpoint to load.

        The configuration is written first, which makes the directory this run's; the checkpoint is fetched last. So at
        whatever moment this is stopped, the same command does it again. The caller holds the directory's lock.
        """
        checkpoints.clear_partial(run_dir.path)
        run_dir.write_config(config_text)
        records = (*run_dir.rows, *((run_dir.trackers,) if self.own else ()))
        for path in records:  # a branch is another run to the loggers
            if self.copies is not None:
                self.copies.fetch_file(path.name, path)
            elif self.folder is not None and self.folder.parent != run_dir.path:
                _copy(self.folder.parent / path.name, path)
        for path in run_dir.rows:
            cut_rows(path, self.step if self.step else -1)
        for _ in read_rows(run_dir.metrics):  # a row that could not be read at the end is found now
            pass
        run_dir.summary.unlink(missing_ok=True)
        if self.copies is None:
            return self.folder
        return run_dir.save_checkpoint(self.step, self._fetch).path

    def _fetch(self, folder: Path) -> None:
        assert self.copies is not None
        self.copies.fetch_checkpoint(self.step, folder)
        if (problem := checkpoints.damage(folder)) is not None:
            raise UserError(
                f"The copy global_step_{self.step} in {self.copies.url} is damaged: {problem}. Remove it there to go "
                f"on from an earlier one."
            )


def find_start(config: RunConfig, run_dir: RunDir) -> Start:
    """Find where the run begins, without writing anything.

    Raises:
        UserError: the run directory, or the place of its copies, holds another run, or what should be gone on from
            cannot be.
    """
    trainer = config.trainer
    copies = None if trainer.default_hdfs_dir is None else Copies(trainer.default_hdfs_dir)
    if copies is not None and copies.is_folder(run_dir.path):
        raise UserError(
            "trainer.default_hdfs_dir and trainer.default_local_dir are the same folder. Name another place for the "
            "copies, or leave trainer.default_hdfs_dir out."
        )
    places: list[tuple[Path | str, str | None]] = []
    if run_dir.is_taken():
        places.append((run_dir.path, run_dir.read_config()))
    if copies is not None and copies.is_taken():
        places.append((copies.url, copies.read_text("config.yaml")))
    if trainer.resume_mode == "disable" and places:
        raise UserError(
            f"{places[0][0]} already holds a run, and trainer.resume_mode=disable starts a new one, which would "
            f"overwrite it. Give this run its own places (trainer.default_local_dir, trainer.default_hdfs_dir); or go "
            f"on with that one: trainer.resume_mode=auto."
        )
    notices: list[str] = []
    for place, text in places:
        stored = stored_config(text, place)
        again = stored.trainer.resume_from_path == trainer.resume_from_path  # the command of a branch, given again
        in_place = trainer.resume_mode == "path" and not again and _names_the_newest(trainer.resume_from_path, run_dir)
        notices += allowed_changes(stored, config, place, in_place=in_place)
    if trainer.val_only and run_dir.checkpoints():
        raise UserError(
            f"trainer.val_only=true validates the initial model, but {run_dir.path} holds a training run. Give it its "
            f"own trainer.default_local_dir=DIR; `verl-cli eval` scores the model of a checkpoint."
        )
    own = _newest(run_dir, copies, notices)
    if own is not None:
        check_same_content(own.state, config)
        return own
    if trainer.resume_mode == "path":
        assert trainer.resume_from_path is not None  # the configuration's checks hold this
        return _named(trainer.resume_from_path, config, notices)
    if run_dir.is_taken():
        if _summary(run_dir) is None:
            notices.append(f"{run_dir.path} holds a run that was stopped before its first checkpoint: it starts again.")
        return Start(own=True, notices=tuple(dict.fromkeys(notices)))
    return Start(notices=tuple(dict.fromkeys(notices)))


def _copy(source: Path, target: Path) -> None:
    """Copy a file, if it is there, so that the copy is whole or not there."""
    if source.exists():
        partial = target.with_name(f".{target.name}{checkpoints.PARTIAL}")
        shutil.copyfile(source, partial)
        partial.replace(target)


def _names_the_newest(path: str | None, run_dir: RunDir) -> bool:
    """Whether a path is that of the run directory's own newest checkpoint; UserError for its older ones."""
    if path is None or "://" in path:
        return False
    named = checkpoints.open_checkpoint(Path(path).expanduser().absolute())
    if named.path.parent.resolve() != run_dir.path.resolve() or not run_dir.checkpoints():
        return False
    newest = run_dir.checkpoints()[-1]
    if named.step < newest.step:
        raise UserError(
            f"{path} is not the newest checkpoint of {run_dir.path}: going on from it would overwrite what the run did "
            f"up to step {newest.step}. Set trainer.resume_mode=auto to go on from there, branch off with "
            f"trainer.default_local_dir=NEW, or remove the later checkpoints."
        )
    return True


def _newest(run_dir: RunDir, copies: Copies | None, notices: list[str]) -> Start | None:
    """The newest whole checkpoint in the run directory or among its copies."""
    local: Checkpoint | None = None
    for checkpoint in reversed(run_dir.checkpoints()):
        problem = checkpoints.damage(checkpoint.path)
        if problem is None:
            local = checkpoint
            break
        notices.append(f"{checkpoint.path} is damaged ({problem}) and passed over.")
    for step in reversed(copies.steps() if copies is not None else []):
        assert copies is not None
        if local is not None and step <= local.step:
            break
        if (problem := copies.damage(step)) is not None:
            notices.append(f"The copy global_step_{step} in {copies.url} is damaged ({problem}) and passed over.")
            continue
        state = read_state(copies.read_text(f"global_step_{step}", STATE), f"{copies.url}/global_step_{step}/{STATE}")
        notices.append(f"Going on from step {step}, from the copy in {copies.url}.")
        return Start(step, None, copies, state, own=True, notices=tuple(dict.fromkeys(notices)))
    if local is None:
        return None
    notices.append(f"Going on from step {local.step}: {local.path}.")
    return Start(local.step, local.path, state=_state_of(local.path), own=True, notices=tuple(dict.fromkeys(notices)))


def _named(path: str, config: RunConfig, notices: list[str]) -> Start:
    """The checkpoint that trainer.resume_from_path names, for a run in another directory."""
    if "://" in path:
        url, _, name = path.rstrip("/").rpartition("/")
        copies, step = Copies(url), checkpoints.step_of(Path(name))
        if step is None or step not in copies.steps():
            raise UserError(
                f"{path} is not a complete checkpoint: that is a folder global_step_N with {MARK} in it, which is "
                f"written last. The complete ones there are of the steps {copies.steps()}."
            )
        text, state = copies.read_text("config.yaml"), read_state(copies.read_text(name, STATE), f"{path}/{STATE}")
        folder = None
    else:
        checkpoint = checkpoints.open_checkpoint(Path(path).expanduser().absolute())
        folder, step, copies = checkpoint.path, checkpoint.step, None
        state, stored = _state_of(folder), folder.parent / "config.yaml"
        text = stored.read_text("utf-8") if stored.exists() else None
    notices.append(f"Going on from step {step}: {path}.")
    if text is not None:  # a branch of another run may differ from it in anything; it is said
        changed = changes(stored_config(text, str(Path(path).parent)), config)
        notices += [said(key, before, now) for key, (before, now) in changed.items() if key not in NOT_WORTH_A_LINE]
    return Start(step, folder, copies, state, notices=tuple(notices))


def read_state(text: str | None, where: str) -> Mapping[str, Any]:
    """Parse a trainer_state.json; UserError if it is none."""
    try:
        state: Mapping[str, Any] = json.loads(text or "")
        if state["format"] != STATE_FORMAT:
            raise ValueError(f"format {state['format']}")
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{where} is not the trainer state that this verl-cli writes ({type(error).__name__}: {error}). Go on "
            f"from an earlier checkpoint, or with the version that wrote it."
        ) from error
    return state


def _state_of(checkpoint: Path) -> Mapping[str, Any]:
    return read_state((checkpoint / STATE).read_text("utf-8"), str(checkpoint / STATE))


def _summary(run_dir: RunDir) -> dict[str, Any] | None:
    """What a finished run said at its end."""
    if not run_dir.summary.exists():
        return None
    try:
        summary: dict[str, Any] = json.loads(run_dir.summary.read_text("utf-8"))
        if not isinstance(summary["steps"], int):
            raise TypeError(f"steps is {summary['steps']!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{run_dir.summary} is damaged ({type(error).__name__}: {error}). Remove it, and the run goes on."
        ) from error
    return summary
