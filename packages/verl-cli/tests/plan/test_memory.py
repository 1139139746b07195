"""The memory formulas against numbers by hand, and against what torch really keeps."""

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM
from verl_cli.plan.arithmetic import MicroBatch, Wave
from verl_cli.plan.memory import (
    Footprint,
    Generator,
    TrainedModel,
    forward_stages,
    generation_stages,
    kv_bytes,
    layer_activations,
    passing_activations,
    peak,
    sampling_bytes,
    sync_stages,
    update_stages,
)
from verl_cli.plan.model_size import Architecture, count_weights, decoder_shapes
from verl_engine import attention
from verl_engine.outputs import ModelInputs, compute_outputs
from verl_rollout import Sampling
from verl_rollout.sampling import sample

#: Qwen2.5-0.5B.
HALF_B = Architecture("qwen2", 24, 896, 4864, 14, 2, 64, 151936, tied=True)
WEIGHTS = count_weights(decoder_shapes(HALF_B), "config.json")
MIB = 1 << 20


def trained(**changes: Any) -> TrainedModel:
    values: dict[str, Any] = {
        "architecture": HALF_B,
        "weights": WEIGHTS,
        "storage": 4,
        "compute": 2,
        "trained": True,
        "value_head": False,
        "checkpointing": True,
        "reshard": True,
        "packed_kernel": True,
    }
    return TrainedModel(**values | changes)


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Counts the bytes of the tensors that operations make, while they live."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.most = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf.untyped_storage())
        return out

    def know(self, tensors: Any) -> None:
        """Leave these tensors out: they were there before."""
        self._known |= {tensor.untyped_storage()._cdata: 0 for tensor in tensors}

    def _add(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known[key] = size
        self.bytes += size
        self.most = max(self.most, self.bytes)
        weakref.finalize(storage, self._remove, key)

    def _remove(self, key: int) -> None:
        self.bytes -= self._known.pop(key, 0)


def test_parameters_of_a_known_model() -> None:
    assert WEIGHTS.total == 494_032_768  # as published
    assert WEIGHTS.outside_layers == 151_936 * 896 + 896
    assert WEIGHTS.largest_layer == 14_912_384


def test_what_a_trained_and_a_frozen_model_hold() -> None:
    stored = 4 * 494_032_768
    assert trained().resident == Footprint(parameters=stored, optimizer=2 * stored)
    assert trained(trained=False).resident == Footprint(parameters=stored)


def test_activations_of_a_layer_by_hand() -> None:
    # Two norms of 8 bytes x 896; 2 bytes x (2 x 896 + 2 x 128) and 14 float32; 8 bytes x 4864.
    assert layer_activations(HALF_B, 2, packed_kernel=True) == 14336 + 4096 + 56 + 38912


def test_keys_and_values_by_hand() -> None:
    assert kv_bytes(HALF_B, 2) == 24 * 2 * 128 * 2


MODELS: list[tuple[Any, Any]] = [
    (Qwen2ForCausalLM, Qwen2Config),
    (LlamaForCausalLM, LlamaConfig),
    (Qwen3ForCausalLM, Qwen3Config),
]
SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


@pytest.mark.parametrize(("model", "config"), MODELS)
@pytest.mark.parametrize(("dtype", "size"), [(torch.bfloat16, 2), (torch.float32, 4)])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_activations_are_what_a_real_model_keeps(
    model: Any, config: Any, dtype: torch.dtype, size: int, checkpointing: bool
) -> None:
    attention.register()
    settings = config(**SIZES, attn_implementation=attention.PACKED)
    with torch.random.fork_rng(devices=[]):
        real = model(settings).to(dtype).train()
    if checkpointing:
        enable = getattr(real, "activation_checkpointing_enable", None) or real.gradient_checkpointing_enable
        enable({"use_reentrant": False, "preserve_rng_state": False})
    tokens = 1024
    cu_seqlens = torch.tensor([0, tokens], dtype=torch.int32)
    inputs: dict[str, Any] = {
        "input_ids": torch.zeros(1, tokens, dtype=torch.int64),
        "position_ids": torch.arange(tokens)[None],
        "use_cache": False,
        "cu_seq_lens_q": cu_seqlens,
        "cu_seq_lens_k": cu_seqlens,
        "max_length_q": tokens,
        "max_length_k": tokens,
        "logits_to_keep": torch.arange(4),
    }
    with Live() as live:
        live.know(real.parameters())
        logits = real(**inputs).logits
        kept = live.bytes
        live.most = live.bytes
        logits.float().sum().backward()
        most = live.most
    with torch.no_grad(), Live() as passing:
        passing.know(real.parameters())
        real(**inputs)
    sizes = Architecture.of_config(settings.to_dict())
    assert sizes is not None
    (first, *_) = [
        stage.footprint.activations
        for stage in update_stages(
            trained(
                architecture=sizes,
                weights=count_weights(decoder_shapes(sizes), "config.json"),
                compute=size,
                checkpointing=checkpointing,
                packed_kernel=False,
            ),
            [MicroBatch(1, tokens, 0)],
            entropy=False,
        )
        if stage.name == "layers"
    ]
    layer = layer_activations(sizes, size, packed_kernel=False)
    expected = 5 * (size * 64 if checkpointing else layer) + (max(4, size) + size) * 64
    assert kept / tokens == pytest.approx(expected, rel=0.1)
    assert most == pytest.approx(first, rel=0.15)
    assert passing.most / tokens == pytest.approx(passing_activations(sizes, size), rel=0.25)


class Head(torch.nn.Module):
    """A vocabulary head alone, as `compute_outputs` calls a model."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(vocabulary, 4, dtype=torch.bfloat16))

    def forward(self, input_ids: torch.Tensor, logits_to_keep: torch.Tensor, **_: Any) -> Any:
        hidden = torch.ones(1, len(logits_to_keep), 4, dtype=torch.bfloat16)
        return SimpleNamespace(logits=torch.nn.functional.linear(hidden, self.weight))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("entropy", [False, True])
def test_logits_are_what_the_engine_holds(entropy: bool, temperature: float) -> None:
    targets, vocabulary = 300, 4000
    head = Head(vocabulary)
    inputs = ModelInputs(
        input_ids=torch.zeros(1, targets + 1, dtype=torch.int64),
        position_ids=torch.arange(targets + 1)[None],
        cu_seqlens=torch.tensor([0, targets + 1], dtype=torch.int32),
        max_length=targets + 1,
        targets=torch.arange(1, targets + 1),
        sources=torch.arange(targets),
    )
    names: Any = ("logprobs", "entropy") if entropy else ("logprobs",)
    with Live() as live:
        live.know(head.parameters())
        with torch.no_grad():
            compute_outputs(head, inputs, names, temperature)
        forward, live.most = live.most, live.bytes
        found = compute_outputs(head, inputs, names, temperature)
        sum(value.sum() for value in found.values()).backward()  # type: ignore[union-attr]
        backward = live.most
    micro = MicroBatch(1, 0, targets)
    sizes = Architecture("qwen2", 1, 4, 4, 1, 1, 4, vocabulary, tied=True)
    model = trained(architecture=sizes, weights=count_weights(decoder_shapes(sizes), "config.json"))
    without = peak(s for s in forward_stages(model, [micro], entropy=entropy) if s.name == "logits")
    update = peak(s for s in update_stages(model, [micro], entropy=entropy) if s.name == "logits")
    assert without.footprint.activations == pytest.approx(forward, rel=0.03)
    assert update.footprint.activations == pytest.approx(backward, rel=0.03)


@pytest.mark.parametrize(
    ("options", "inside"),
    [
        ({}, 8),  # the copy that cumsum makes of its input in float64: inside the operation
        ({"top_p": 0.9}, 0),
        ({"top_k": 50}, 0),
        ({"top_k": 50, "top_p": 0.9}, 0),
    ],
)
def test_sampling_is_what_the_rollout_holds(options: dict[str, Any], inside: int) -> None:
    sequences, vocabulary = 16, 5000
    logits = torch.zeros(sequences, vocabulary, dtype=torch.bfloat16)
    numbers = torch.full((sequences,), 0.5, dtype=torch.float64)
    with torch.inference_mode(), Live() as live:
        sample(logits, Sampling(max_tokens=1, **options), numbers)
    planned = sampling_bytes(2, top_k="top_k" in options, top_p="top_p" in options) * sequences * vocabulary
    assert planned == pytest.approx(live.most + (2 + inside) * sequences * vocabulary, rel=0.02)


def test_gradients_are_held_from_the_second_micro_batch_on() -> None:
    one = update_stages(trained(), [MicroBatch(8, 1024, 512)], entropy=False)
    two = update_stages(trained(), [MicroBatch(8, 1024, 512)] * 2, entropy=False)
    assert one[0].footprint.gradients == 0
    assert two[0].footprint.gradients == 4 * WEIGHTS.total
    assert one[-1].footprint.gradients > 4 * WEIGHTS.total  # they are all there at the end


def test_checkpointing_trades_activations_of_all_layers_for_one() -> None:
    kept = update_stages(trained(checkpointing=False), [MicroBatch(8, 8192, 8)], entropy=False)
    again = update_stages(trained(), [MicroBatch(8, 8192, 8)], entropy=False)
    layer = layer_activations(HALF_B, 2, packed_kernel=True)
    assert kept[0].footprint.activations - again[0].footprint.activations == 8192 * 24 * (layer - 2 * 896)


def test_without_resharding_the_gathered_model_stays() -> None:
    stages = update_stages(trained(reshard=False), [MicroBatch(8, 1024, 512)], entropy=False)
    assert all(stage.footprint.parameters == 2 * WEIGHTS.total for stage in stages)


def test_a_critic_has_no_logits() -> None:
    stages = update_stages(trained(value_head=True), [MicroBatch(8, 1024, 512)], entropy=False)
    assert "logits" not in {stage.name for stage in stages}
    assert "logits" not in {
        s.name for s in forward_stages(trained(value_head=True), [MicroBatch(1, 9, 4)], entropy=False)
    }


def test_generation_by_hand() -> None:
    rollout = Generator(HALF_B, WEIGHTS, 2, top_k=False, top_p=False)
    wave = Wave(sequences=256, prompts=64, prompt_tokens=100, tokens=611, padded=True)
    prompts, cache, drawing = (stage.footprint for stage in generation_stages(rollout, [wave]))
    assert rollout.resident.parameters == 2 * WEIGHTS.total
    assert prompts.kv_cache == 64 * 100 * 12288
    assert prompts.activations == 64 * 100 * 2 * (4 * 896 + 3 * 4864) + 64 * 100 * 100 * 3
    assert cache.kv_cache == 256 * 611 * (12288 + 2 * 128)  # one layer's keys are there twice as they grow
    assert drawing == Footprint(activations=256 * 151936 * 26, kv_cache=256 * 611 * 12288)


def test_sync_casts_one_weight_at_a_time() -> None:
    embedding = 151936 * 896
    rollout = Generator(HALF_B, WEIGHTS, 2, top_k=False, top_p=False)
    (stage,) = sync_stages(trained(), rollout, "cuda")
    assert stage.footprint == Footprint(parameters=2 * embedding + 32 * MIB)
    (same,) = sync_stages(trained(), Generator(HALF_B, WEIGHTS, 4, top_k=False, top_p=False), "cpu")
    assert same.footprint == Footprint(parameters=8 << 15)


def test_the_peak_is_the_stage_with_the_largest_sum() -> None:
    stages = update_stages(trained(), [MicroBatch(8, 1024, 512)], entropy=True)
    assert peak(stages).footprint.total == max(stage.footprint.total for stage in stages)
