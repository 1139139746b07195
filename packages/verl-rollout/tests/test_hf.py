import asyncio
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl_rollout import (
    Completion,
    HfRollout,
    ModelNotFoundError,
    NonFiniteLogitsError,
    Request,
    RolloutError,
    Sampling,
)
from verl_rollout.testing import ModuleSource, TensorSource, build_tiny_model

DEVICE = os.environ.get("VERL_TEST_DEVICE", "cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return build_tiny_model(tmp_path / "model")


def load(folder: Path) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval().to(DEVICE)


def engine(folder: Path, **arguments: Any) -> HfRollout:
    return HfRollout(folder, device=DEVICE, **{"dtype": "float32", **arguments})


def random_requests(count: int, seed: int = 0) -> list[Request]:
    rng = np.random.default_rng(seed)
    return [Request(rng.integers(2, 40, size=rng.integers(1, 12)).tolist(), (3, row)) for row in range(count)]


def test_greedy_equals_transformers_generate(folder: Path) -> None:
    requests = random_requests(20)
    model = load(folder)
    for completion in engine(folder).generate(requests, Sampling(max_tokens=20, temperature=0)):
        prompt = torch.tensor([completion.request.prompt_ids], device=DEVICE)
        output = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, do_sample=False, pad_token_id=0
        )
        assert completion.token_ids.tolist() == output[0, prompt.shape[1] :].tolist()


def test_logprobs_and_tokens_stay_right_while_finished_sequences_leave_the_batch(folder: Path) -> None:
    # Bug bank E06: log-probs by id, over 200 responses of mixed prompts and ends, prompts repeated and not.
    requests = [*random_requests(150), *(Request([5, 6, 7], (4, repeat)) for repeat in range(50))]
    sampling = Sampling(max_tokens=30, seed=9, temperature=1.3)
    rollout = engine(folder, max_num_seqs=128)
    completions = rollout.generate(requests, sampling)
    assert len({len(completion.token_ids) for completion in completions}) > 10
    model = load(folder)
    for completion in completions[::15]:
        ids = torch.tensor([*completion.request.prompt_ids, *completion.token_ids], device=DEVICE)[None]
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(completion.request.prompt_ids) - 1 : -1]
        expected = (
            (logits / 1.3).log_softmax(-1).cpu().gather(-1, torch.from_numpy(completion.token_ids)[:, None])[:, 0]
        )
        np.testing.assert_allclose(completion.logprobs, expected.numpy(), rtol=0, atol=1e-5)
        (alone,) = rollout.generate([completion.request], sampling)
        assert alone.token_ids.tolist() == completion.token_ids.tolist()


def test_a_real_end_is_kept_when_padding_is_the_same_token(folder: Path) -> None:
    # Bug bank E01 and E03: lengths come from the engine, never from comparing with the padding id.
    generation = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(
        json.dumps({**generation, "pad_token_id": 1, "eos_token_id": [1, 7]})
    )
    completions = engine(folder).generate(random_requests(100), Sampling(max_tokens=10, seed=2))
    ends = {completion.token_ids[-1] for completion in completions if completion.finish_reason == "stop"}
    assert ends == {1, 7}
    for completion in completions:
        assert not {1, 7} & set(completion.token_ids[:-1].tolist())
        assert completion.finish_reason == "stop" or len(completion.token_ids) == 10


def test_ids_are_never_decoded(folder: Path) -> None:
    # Bug bank E07: a response continues token by token as the prompt of the next turn, ids that no text gives included.
    rollout = engine(folder)
    sampling = Sampling(max_tokens=8, temperature=0, ignore_eos=True)
    (whole,) = rollout.generate([Request([0, 1, 0, 5], (0,))], sampling)
    (half,) = rollout.generate([Request([0, 1, 0, 5], (0,))], Sampling(max_tokens=4, temperature=0, ignore_eos=True))
    (rest,) = rollout.generate([Request([0, 1, 0, 5, *half.token_ids.tolist()], (0,))], sampling)
    assert [*half.token_ids, *rest.token_ids][:8] == whole.token_ids.tolist()


def test_the_context_limit_can_be_lowered_not_raised(folder: Path) -> None:
    assert engine(folder).context_tokens == 64
    rollout = engine(folder, max_model_len=8)
    assert rollout.context_tokens == 8
    with pytest.raises(RolloutError, match="has 8 tokens"):
        rollout.generate([Request([5] * 8, (0,))], Sampling(max_tokens=1))
    with pytest.raises(RolloutError, match="holds token id 99"):
        rollout.generate([Request([99], (0,))], Sampling(max_tokens=1))
    completions = rollout.generate([Request([5] * n, (n,)) for n in (2, 7)], Sampling(max_tokens=9, ignore_eos=True))
    assert [len(completion.token_ids) for completion in completions] == [6, 1]
    with pytest.raises(ValueError, match="at most 64"):
        engine(folder, max_model_len=65)


def test_streams_hand_over_early_and_end_with_an_update(folder: Path) -> None:
    rollout = engine(folder)
    requests = random_requests(30)
    source = ModuleSource(load(folder))

    async def first_then_update() -> list[Completion]:
        got: list[Completion] = []
        async for completion in rollout.stream(requests, Sampling(max_tokens=40)):
            if not got:
                rollout.update_weights(source, 1)
            got.append(completion)
        return got

    with pytest.raises(RuntimeError, match="while it was streaming"):
        asyncio.run(first_then_update())

    async def lengths() -> list[int]:
        return [len(c.token_ids) async for c in rollout.stream(requests, Sampling(max_tokens=40))]

    seen = asyncio.run(lengths())
    assert seen == sorted(seen) and len(set(seen)) > 3


def test_weights_that_are_not_finite_are_an_error(folder: Path) -> None:
    rollout = engine(folder)
    broken = {name: torch.full_like(tensor, float("nan")) for name, tensor in load(folder).named_parameters()}
    rollout.update_weights(TensorSource(broken), 1)
    for temperature in (0, 1):
        with pytest.raises(NonFiniteLogitsError, match=r"request \(3, 0\)") as raised:
            rollout.generate(random_requests(1), Sampling(max_tokens=2, temperature=temperature))
        assert isinstance(raised.value, RolloutError) and isinstance(raised.value, FloatingPointError)


def test_the_default_dtype_follows_the_device(folder: Path) -> None:
    report = HfRollout(folder, device=DEVICE).update_weights(ModuleSource(load(folder)), 1)
    parameters = sum(parameter.numel() for parameter in load(folder).parameters())
    assert report.bytes_received == parameters * (4 if DEVICE == "cpu" else 2)


def test_overridden_configuration_values_change_what_is_computed(folder: Path) -> None:
    request, sampling = Request(prompt_ids=[2, 3, 4, 5], key=(0,)), Sampling(max_tokens=3, temperature=0.0)
    plain = HfRollout(folder).generate([request], sampling)[0].logprobs
    same = HfRollout(folder, override_config={"rms_norm_eps": 1e-6}).generate([request], sampling)[0].logprobs
    other = HfRollout(folder, override_config={"rms_norm_eps": 0.5}).generate([request], sampling)[0].logprobs
    np.testing.assert_array_equal(plain, same)
    assert not np.array_equal(plain, other)
    with pytest.raises(ValueError, match="rms_norm_epsilon"):
        HfRollout(folder, override_config={"rms_norm_epsilon": 0.5})


def test_bad_arguments_say_what_to_do(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no model folder") as raised:
        HfRollout(tmp_path / "nowhere")
    assert isinstance(raised.value, RolloutError) and isinstance(raised.value, FileNotFoundError)
    with pytest.raises(RolloutError, match="no torch device 'gpu'"):
        HfRollout(folder, device="gpu")
    with pytest.raises(RolloutError, match=r"on cuda:99, but torch finds \d+ usable GPUs.*trainer.device=cpu"):
        HfRollout(folder, device="cuda:99")
    with pytest.raises(RolloutError, match="bfloat16, float16"):
        HfRollout(folder, dtype="fp9")
    with pytest.raises(ValueError, match="max_num_seqs"):
        HfRollout(folder, max_num_seqs=0)
    with pytest.raises(ValueError, match="Sleep level 3"):
        engine(folder).sleep(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (None, "cannot be loaded"),
        ({"hidden_size": "abc"}, "hidden_size"),
        ({"hidden_act": "foo"}, "foo"),
        ({"num_attention_heads": 0}, "cannot be loaded"),
        (
            {"intermediate_size": 65},
            r"mlp\.\w+\.weight has shape \(\d+, \d+\), the configuration asks for \(\d+, \d+\)",
        ),
        ({"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}, r"lack model\.layers\.2"),
    ],
)
def test_faults_of_the_model_folder_are_one_error(folder: Path, changes: dict[str, Any] | None, named: str) -> None:
    path = folder / "config.json"
    path.write_text("[]" if changes is None else json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(RolloutError, match=named) as raised:
        HfRollout(folder)
    assert str(folder) in str(raised.value) and "\n" not in str(raised.value)


def test_damaged_weights_and_refused_overrides_are_one_error(folder: Path) -> None:
    with pytest.raises(RolloutError, match="override_config sets hidden_size to 'abc'"):
        HfRollout(folder, override_config={"hidden_size": "abc"})
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(RolloutError, match="cannot be loaded: SafetensorError"):
        HfRollout(folder)


def test_the_tiny_models_tokenizer_is_one_token_a_character(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("12+3=a b")["input_ids"]
    assert len(ids) == 8 and tokenizer.decode(ids) == "12+3=a b"
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
