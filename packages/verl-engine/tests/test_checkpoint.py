import json
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
        with pytest.raises(OSError, match="No space left"):
            engine.save(tmp_path / "state")
    engine.load(tmp_path / "state")
    assert engine.steps == 1
    assert all((weight == saved[name]).all() for name, weight in full_weights(engine).items())
    engine.save(tmp_path / "state")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


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
    assert resumed.train_batch(BATCH, PolicyLoss(), count(BATCH))["lr"] == (5e-4, 1.0)


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
