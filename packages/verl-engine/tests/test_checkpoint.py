import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from verl_engine import CheckpointError, EngineConfig, FsdpEngine, OptimConfig
from verl_engine.testing import PolicyLoss, count, engine_config, full_weights, random_batch, tiny_model

BATCH = random_batch(0, (5, 6, 7))


def trained(config: EngineConfig) -> FsdpEngine:
    engine = FsdpEngine(config)
    engine.train_batch(BATCH, PolicyLoss(), count(BATCH))
    return engine


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    return engine_config(tiny_model(tmp_path_factory.mktemp("model")), "fp32")


@pytest.fixture(scope="module")
def engine(config: EngineConfig) -> FsdpEngine:
    return trained(config)


def test_partial_and_damaged_folders_are_refused(engine: FsdpEngine, tmp_path: Path) -> None:
    before = full_weights(engine)
    with pytest.raises(CheckpointError, match="not a complete engine checkpoint"):
        engine.load(tmp_path)
    folder = tmp_path / "state"
    for damage in ("shorter", "removed", "manifest"):
        engine.save(folder)
        data = next(folder.glob("*.distcp"))
        if damage == "shorter":
            data.write_bytes(data.read_bytes()[:-100])
        elif damage == "removed":
            data.unlink()
        else:
            (folder / "engine.json").write_text("{")
        with pytest.raises(CheckpointError, match="damaged"):
            engine.load(folder)
    after = full_weights(engine)
    assert all((after[name] == before[name]).all() for name in before)


def test_garbage_of_the_right_size_is_refused(config: EngineConfig, tmp_path: Path) -> None:
    engine = trained(config)
    engine.save(tmp_path / "state")
    data = next((tmp_path / "state").glob("*.distcp"))
    data.write_bytes(bytes(len(data.read_bytes())))
    with pytest.raises(CheckpointError, match="Go back to an earlier checkpoint"):
        engine.load(tmp_path / "state")


def test_interrupted_save_keeps_the_earlier_one(
    config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = trained(config)
    engine.save(tmp_path / "state")
    saved = full_weights(engine)
    engine.train_batch(BATCH, PolicyLoss(), count(BATCH))

    def fail(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(json, "dumps", fail)  # the manifest is the last thing written
        with pytest.raises(CheckpointError, match="No space left") as raised:
            engine.save(tmp_path / "state")
    assert isinstance(raised.value.__cause__, OSError)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    engine.load(tmp_path / "state")
    assert engine.steps == 1
    assert all((weight == saved[name]).all() for name, weight in full_weights(engine).items())
    engine.save(tmp_path / "state")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


_WRITE_ON_A_FULL_DISK = """
import resource, sys
from pathlib import Path
from verl_engine import CheckpointError, FsdpEngine
from verl_engine.testing import engine_config

engine = FsdpEngine(engine_config(Path(sys.argv[1]), "fp32"))
target = Path(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # a write past it fails as one on a full disk does
for write in (engine.save, engine.export):
    try:
        write(target)
    except CheckpointError as error:
        print(type(error.__cause__).__name__, error)
"""


def test_full_disk_is_one_error_and_leaves_nothing(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    target = tmp_path / "out" / "state"
    command = [sys.executable, "-c", _WRITE_ON_A_FULL_DISK, str(model), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    saved, exported = done.stdout.splitlines()
    assert saved.startswith(f"CheckpointException {target} could not be written: ") and "Free space" in saved
    assert exported.startswith(f"SafetensorError {target} could not be written: ") and "Free space" in exported
    assert list((tmp_path / "out").iterdir()) == []


def test_folder_that_cannot_be_made_is_one_error(engine: FsdpEngine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for write in (engine.save, engine.export):
        with pytest.raises(CheckpointError, match=r"could not be written: .*Not a directory"):
            write(tmp_path / "file" / "state")


_WRITE_ON_TWO_RANKS = """
import sys
from pathlib import Path
import torch.distributed as dist
from verl_engine import CheckpointError, FsdpEngine
from verl_engine.testing import engine_config

model, store, target, rank = sys.argv[1:]
dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=int(rank), world_size=2)
engine = FsdpEngine(engine_config(Path(model), "fp32"))
for write in (engine.save, engine.export):
    try:
        write(Path(target))
    except CheckpointError as error:
        print(error)
dist.destroy_process_group()
"""


def test_failure_of_one_rank_is_one_of_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")  # only rank 0 makes the folder, and cannot
    model, target = tiny_model(tmp_path / "model"), tmp_path / "file" / "state"
    command = [sys.executable, "-c", _WRITE_ON_TWO_RANKS, str(model), str(tmp_path / "store"), str(target)]
    on_cpu = os.environ | {"VERL_TEST_DEVICE": "cpu"}  # two ranks do not share a GPU
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True, env=on_cpu) for rank in range(2)
    ]
    try:
        first, second = (process.communicate(timeout=120)[0] for process in ranks)
    finally:
        for process in ranks:
            process.kill()
    assert first == second and second.count(f"{target} could not be written: ") == 2


def test_checkpoint_without_moments_is_refused_by_a_trained_engine(config: EngineConfig, tmp_path: Path) -> None:
    frozen = FsdpEngine(replace(config, optim=None))
    frozen.save(tmp_path / "frozen")
    with pytest.raises(CheckpointError, match="without its optimiser"):
        FsdpEngine(config).load(tmp_path / "frozen")


def test_frozen_engine_takes_the_parameters(engine: FsdpEngine, config: EngineConfig, tmp_path: Path) -> None:
    engine.save(tmp_path / "state")
    frozen = FsdpEngine(replace(config, optim=None))
    frozen.load(tmp_path / "state")
    found, expected = (each.forward(BATCH, ("logprobs",))["logprobs"] for each in (frozen, engine))
    np.testing.assert_array_equal(found, expected)


def test_checkpoint_of_another_model_is_refused(engine: FsdpEngine, tmp_path: Path) -> None:
    engine.save(tmp_path / "state")
    other = FsdpEngine(engine_config(tiny_model(tmp_path / "other", vocab_size=33), "fp32"))
    with pytest.raises(CheckpointError, match="of another model"):
        other.load(tmp_path / "state")


def test_hyperparameters_are_those_of_the_new_configuration(
    engine: FsdpEngine, config: EngineConfig, tmp_path: Path
) -> None:
    engine.save(tmp_path / "state")
    resumed = FsdpEngine(replace(config, optim=OptimConfig(lr=5e-4)))
    resumed.load(tmp_path / "state")
    assert resumed.train_batch(BATCH, PolicyLoss(), count(BATCH))["lr"].number() == 5e-4


def test_export_has_the_tokenizer_of_the_model(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

    model = tiny_model(tmp_path / "model")
    words = Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer: Any = PreTrainedTokenizerFast
    tokenizer(tokenizer_object=words).save_pretrained(model)
    FsdpEngine(engine_config(model, "fp32")).export(tmp_path / "export")
    assert AutoTokenizer.from_pretrained(tmp_path / "export").encode("b") == [1]
    assert AutoConfig.from_pretrained(tmp_path / "export").architectures == ["Qwen2ForCausalLM"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export", "model"]
