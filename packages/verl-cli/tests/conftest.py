"""A tiny model and a tiny data set on disk, and the command line that trains one on the other."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

# One thread for torch, here and in processes that tests start: the tensors are tiny, and a second thread only waits.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch.distributed as dist
from verl_cli.quickstart.model import write_model
from verl_data.processors.arithmetic import prepare_addition

# In importlib mode pytest puts no folder on the path; these modules are for the tests here only.
sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("endings", "killed_runs", "made_up_facts")

from killed_runs import Runs  # noqa: E402

#: A reward that differs between the answers of an untrained model: with equal rewards, whitening magnifies rounding.
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": sum(map(ord, solution_str)) % 7 / 7, "acc": solution_str == ground_truth}
"""


@pytest.fixture(scope="session")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model`, `reward.py`, and `train.parquet` and `validation.parquet` of addition problems."""
    folder = tmp_path_factory.mktemp("assets")
    # Most of a short run goes into its checkpoints, and their time into the number of tensors.
    write_model(folder / "model", seed=0, hidden_size=32, layers=1)
    prepare_addition(folder, low=10, high=14, validation=5, seed=0)
    (folder / "reward.py").write_text(REWARD)
    return folder


@pytest.fixture(autouse=True)
def no_process_group_is_left() -> Iterator[None]:
    """Leave the process group that an engine started, as the end of a run does."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def overrides(assets: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """Build the command line of a short run into `tmp_path/run`; keywords add or replace keys ("__" is ".")."""

    def build(**changes: object) -> list[str]:
        keys: dict[str, object] = {
            "data.train_files": assets / "train.parquet",
            "data.val_files": assets / "validation.parquet",
            "data.train_batch_size": 8,
            "data.max_prompt_length": 16,
            "data.max_response_length": 4,
            "actor_rollout_ref.model.path": assets / "model",
            "actor_rollout_ref.model.enable_gradient_checkpointing": "false",
            "actor_rollout_ref.rollout.n": 2,
            "actor_rollout_ref.actor.ppo_mini_batch_size": 4,
            "actor_rollout_ref.actor.optim.lr": 1e-3,
            "critic.optim.lr": 1e-3,
            "reward.custom_reward_function.path": assets / "reward.py",
            "reward.num_workers": 0,  # starting workers would take a third of a run
            "trainer.total_training_steps": 2,
            "trainer.device": "cpu",
            "trainer.default_local_dir": tmp_path / "run",
        }
        keys |= {name.replace("__", "."): value for name, value in changes.items()}
        return [f"{key}={value}" for key, value in keys.items()]

    return build


@pytest.fixture(scope="session")
def resume_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resume")


@pytest.fixture
def runs(resume_folder: Path, overrides: Callable[..., list[str]]) -> Runs:
    """Runs with all that must go on after a kill: schedules, an adaptive penalty, sampled validations."""
    return Runs(
        resume_folder,
        overrides,
        reward='{"score": sum(map(ord, solution_str)) % 7 / 7, "acc": solution_str == ground_truth}',
        keys={
            "trainer__test_freq": 2,
            "actor_rollout_ref__actor__optim__lr_scheduler_type": "linear",
            "actor_rollout_ref__actor__optim__lr_warmup_steps": 6,
            "actor_rollout_ref__actor__shuffle": "true",
            "algorithm__kl_ctrl__type": "adaptive",
            "actor_rollout_ref__rollout__val_kwargs__temperature": 1.0,
            "actor_rollout_ref__rollout__val_kwargs__n": 2,
        },
    )


@pytest.fixture
def uninterrupted(runs: Runs) -> Path:
    """The run directory of the run that is never stopped; trained once, and only read."""
    run_dir = runs.folder / "uninterrupted"
    if not run_dir.exists():
        assert runs.run(run_dir) == 0
    return run_dir
