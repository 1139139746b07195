import json
from pathlib import Path
from typing import Any

import pytest
import torch
from verl_engine import (
    EngineConfig,
    EngineError,
    FsdpConfig,
    FsdpEngine,
    ModelConfig,
    ModelError,
    OptimConfig,
    init_single_process,
)
from verl_engine.loading import load_model
from verl_engine.testing import PolicyLoss, ValueLoss, count, random_batch, tiny_model


def config(path: Path, **settings: Any) -> EngineConfig:
    return EngineConfig(ModelConfig(str(path)), **settings)


def rewrite(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere cannot be loaded"):
        load_model(config(tmp_path / "nowhere"))


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    weights = tiny_model(tmp_path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_model(config(tmp_path))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (None, "cannot be loaded"),
        ({"hidden_size": "abc"}, "hidden_size"),
        ({"hidden_act": "foo"}, "foo"),
        ({"num_attention_heads": 0}, "cannot be loaded"),
        ({"intermediate_size": 65}, r"mlp\.\w+\.weight has shape \(\d+, \d+\), the configuration \(head=lm\) asks for"),
    ],
)
def test_broken_folders_are_named(tmp_path: Path, changes: dict[str, Any] | None, named: str) -> None:
    tiny_model(tmp_path)
    if changes is None:
        (tmp_path / "config.json").write_text("[]")
    else:
        rewrite(tmp_path, **changes)
    with pytest.raises(ModelError, match=named) as raised:
        load_model(config(tmp_path))
    assert str(tmp_path) in str(raised.value) and "\n" not in str(raised.value)


def test_override_of_a_wrong_type_is_named(tmp_path: Path) -> None:
    model = ModelConfig(str(tiny_model(tmp_path)), override_config={"hidden_size": "abc"})
    with pytest.raises(ModelError, match=r"override_config sets hidden_size to 'abc'.*refuses"):
        load_model(EngineConfig(model))


def test_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    tiny_model(tmp_path / "model")
    FsdpEngine(EngineConfig(ModelConfig("~/model"))).export(tmp_path / "export")
    assert (tmp_path / "export" / "model.safetensors").is_file()


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without a GPU")
def test_cuda_without_a_gpu_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"trainer\.device=cpu"):
        FsdpEngine(config(tmp_path, device="cuda"))


@pytest.mark.parametrize("token", [-1, 20])
def test_token_ids_outside_the_vocabulary_are_named(tmp_path: Path, token: int) -> None:
    engine = FsdpEngine(config(tiny_model(tmp_path, vocab_size=20), head="value"))
    batch = random_batch(0, (5, 6), vocab_size=20)
    ids = batch["input_ids"].copy()
    ids[7] = token
    batch = batch.with_columns(tokens={"input_ids": ids})
    message = f"token id {token}, but the vocabulary of {tmp_path} .* has 20 tokens"
    with pytest.raises(EngineError, match=message):
        engine.forward(batch, ("values",))
    with pytest.raises(EngineError, match=message):
        engine.train_batch(batch, ValueLoss(), count(batch))


def test_weights_that_do_not_match_are_an_error(tmp_path: Path) -> None:
    tiny_model(tmp_path)
    rewrite(tmp_path, num_hidden_layers=3, layer_types=["full_attention"] * 3)
    with pytest.raises(ModelError, match=r"lacks model.layers.2.* and 9 more"):
        load_model(config(tmp_path))
    rewrite(tmp_path, num_hidden_layers=1, layer_types=["full_attention"])
    with pytest.raises(ModelError, match=r"It has model.layers.1.* no place"):
        load_model(config(tmp_path))


def test_value_model_cannot_be_an_actor(tmp_path: Path) -> None:
    FsdpEngine(config(tiny_model(tmp_path / "lm", tied=True), head="value")).export(tmp_path / "value")
    with pytest.raises(ModelError, match=r"score.*a value model cannot be an actor"):
        load_model(config(tmp_path / "value"))


def test_layers_that_mix_packed_sequences_are_refused(tmp_path: Path) -> None:
    tiny_model(tmp_path)
    rewrite(tmp_path, layer_types=["full_attention", "chunked_attention"])
    with pytest.raises(ModelError, match="chunked_attention"):
        load_model(config(tmp_path))


def test_architecture_without_the_head_is_refused(tmp_path: Path) -> None:
    from transformers import OPTConfig, OPTForCausalLM

    OPTForCausalLM(
        OPTConfig(hidden_size=16, ffn_dim=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=8)
    ).config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="no AutoModelForTokenClassification for the architecture 'opt'"):
        load_model(config(tmp_path, head="value"))


def test_dropouts_are_zero_and_overrides_are_checked(tmp_path: Path) -> None:
    tiny_model(tmp_path, attention_dropout=0.3)
    model = load_model(EngineConfig(ModelConfig(str(tmp_path), override_config={"rms_norm_eps": 0.5}), head="value"))
    assert model.config.attention_dropout == 0.0 and model.config.rms_norm_eps == 0.5
    assert all(module.p == 0 for module in model.modules() if isinstance(module, torch.nn.Dropout))
    wrong = ModelConfig(str(tmp_path), override_config={"rms_norm_epsilon": 0.5})
    with pytest.raises(ModelError, match="did you mean rms_norm_eps"):
        load_model(EngineConfig(wrong))


def test_loading_draws_nothing_from_the_global_generator(tmp_path: Path) -> None:
    tiny_model(tmp_path)
    before = torch.random.get_rng_state()
    load_model(config(tmp_path, head="value"))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_head_decides_what_an_engine_gives(tmp_path: Path) -> None:
    engine = FsdpEngine(config(tiny_model(tmp_path)))
    with pytest.raises(EngineError, match="head=lm, which gives entropy, logprobs, sum_pi_squared, not values"):
        engine.forward(random_batch(0, (3,)), ("values",))


def test_frozen_engine_does_not_train(tmp_path: Path) -> None:
    engine = FsdpEngine(config(tiny_model(tmp_path), optim=None, fsdp=FsdpConfig(model_dtype="bf16")))
    batch = random_batch(0, (5, 6))
    assert engine.forward(batch, ("logprobs",))["logprobs"].any()
    with pytest.raises(EngineError, match="frozen"):
        engine.train_batch(batch, PolicyLoss(), count(batch))


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="round small updates away"):
        EngineConfig(ModelConfig("m"), fsdp=FsdpConfig(model_dtype="bf16"))
    with pytest.raises(ValueError, match="temperature is 0"):
        EngineConfig(ModelConfig("m"), temperature=0)
    with pytest.raises(ValueError, match="Unknown dtype 'fp16'"):
        EngineConfig(ModelConfig("m"), fsdp=FsdpConfig(model_dtype="fp16"))


def test_updates_do_not_vanish_in_bfloat16(tmp_path: Path) -> None:
    tiny_model(tmp_path)
    optim = OptimConfig(lr=6e-4, weight_decay=0.0)
    engine = FsdpEngine(config(tmp_path, optim=optim, fsdp=FsdpConfig(dtype="bfloat16")))
    batch = random_batch(1, (9, 8, 7))
    before = {name: weight.to_local().clone() for name, weight in engine.weights()}  # type: ignore[attr-defined]
    engine.train_batch(batch, PolicyLoss(), count(batch))
    for name, weight in engine.weights():
        if "norm" in name:
            assert weight.dtype == torch.float32
            change = (weight.to_local() - before[name]).abs()  # type: ignore[attr-defined]
            # AdamW's first step is lr wherever the gradient is not zero; bfloat16 near 1 could not hold it.
            assert change.max() == pytest.approx(6e-4, rel=1e-3)


def test_environment_of_several_ranks_without_a_group_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    with pytest.raises(EngineError, match="init_process_group before building an engine"):
        init_single_process()
