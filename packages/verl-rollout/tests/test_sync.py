import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from transformers import AutoModelForCausalLM
from verl_rollout import HfRollout, InProcessEndpoint, Request, Sampling, SentWeight, WeightSender, WeightStream
from verl_rollout.checksum import add_up, weight_checksum
from verl_rollout.interface import WeightMetadata
from verl_rollout.testing import ModuleSource, TensorSource, build_tiny_model

DEVICE = os.environ.get("VERL_TEST_DEVICE", "cpu")
GREEDY = Sampling(max_tokens=8, temperature=0)
REQUESTS = [Request([5, 6, 7], (0,)), Request([9, 10], (1,))]


def new_weights(folder: Path, *, tied: bool = True) -> dict[str, torch.Tensor]:
    path = build_tiny_model(folder / "new", seed=1, tie_word_embeddings=tied)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return dict(ModuleSource(model))


def generated(rollout: HfRollout) -> list[list[int]]:
    return [completion.token_ids.tolist() for completion in rollout.generate(REQUESTS, GREEDY)]


class Altered:
    """A stream that damages one weight after the sender's checksum, as a broken transport would."""

    def __init__(self, stream: WeightStream) -> None:
        self._stream = stream
        self.version = stream.version

    def metadata(self) -> list[WeightMetadata]:
        return self._stream.metadata()

    def tensors(self, dtypes: Mapping[str, torch.dtype]) -> Iterator[SentWeight]:
        for sent in self._stream.tensors(dtypes):
            if sent.name == "model.norm.weight":
                damaged = sent.tensor.clone()
                damaged[3] = damaged[3].nextafter(torch.tensor(9.0, dtype=damaged.dtype))
                yield sent._replace(tensor=damaged)
            else:
                yield sent


def test_one_damaged_bit_fails_the_update_and_stops_generation(tmp_path: Path) -> None:
    rollout = HfRollout(build_tiny_model(tmp_path / "old"), device=DEVICE, dtype="float32")
    source = TensorSource(new_weights(tmp_path))
    endpoint = InProcessEndpoint()
    WeightSender(source, endpoint).send(1)
    endpoint.put(Altered(endpoint.take()))
    with pytest.raises(RuntimeError, match=r"checksum differs .* model\.norm\.weight\."):
        rollout.receive_weights(endpoint, 1)
    with pytest.raises(RuntimeError, match="did not succeed"):
        rollout.generate(REQUESTS, GREEDY)
    assert rollout.version == 0
    rollout.update_weights(source, 1)
    assert generated(rollout) == generated(HfRollout(tmp_path / "new", device=DEVICE, dtype="float32"))


def test_weights_are_cast_before_they_travel(tmp_path: Path) -> None:
    rollout = HfRollout(build_tiny_model(tmp_path / "old"), device=DEVICE, dtype="bfloat16")
    weights = new_weights(tmp_path)
    report = rollout.update_weights(TensorSource(weights), 1)
    assert report.bytes_received == 2 * sum(tensor.numel() for tensor in weights.values())
    expected = add_up(weight_checksum(name, tensor.to(torch.bfloat16)) for name, tensor in weights.items())
    assert report.checksum == expected


def test_the_smallest_change_is_seen(tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path / "old")
    weights = dict(ModuleSource(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)))
    rollout = HfRollout(folder, device=DEVICE, dtype="float32")
    assert not rollout.update_weights(TensorSource(weights), 1).changed
    bias = weights["model.layers.1.self_attn.q_proj.bias"]
    with torch.no_grad():
        bias[0] = bias[0].nextafter(torch.tensor(9.0))
    assert rollout.update_weights(TensorSource(weights), 2).changed
    assert not rollout.update_weights(TensorSource(weights), 3).changed


def test_level_2_sleep_remembers_what_it_dropped(tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path / "old")
    source = ModuleSource(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
    rollout = HfRollout(folder, device=DEVICE, dtype="float32")
    before = generated(rollout)
    for level in (1, 2):
        rollout.sleep(level)
    rollout.sleep(1)  # does not bring back what level 2 dropped
    rollout.wake()
    rollout.wake()
    with pytest.raises(RuntimeError, match="dropped"):
        rollout.generate(REQUESTS, GREEDY)
    assert not rollout.update_weights(source, 1).changed
    assert generated(rollout) == before


def test_a_tied_weight_may_come_under_its_other_name(tmp_path: Path) -> None:
    rollout = HfRollout(build_tiny_model(tmp_path / "old"), device=DEVICE, dtype="float32")
    weights = new_weights(tmp_path)
    weights["lm_head.weight"] = weights.pop("model.embed_tokens.weight")
    rollout.update_weights(TensorSource(weights), 1)
    assert generated(rollout) == generated(HfRollout(tmp_path / "new", device=DEVICE, dtype="float32"))


def test_a_source_must_yield_what_it_lists(tmp_path: Path) -> None:
    weights = new_weights(tmp_path)

    class Reshaped(TensorSource):
        def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in super().__iter__():
                yield name, tensor.reshape(-1)

    class Twice(TensorSource):
        def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
            first = next(super().__iter__())
            yield from (first, first)

    class Extra(TensorSource):
        def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
            yield "visual.weight", torch.zeros(1)

    for faulty, named in ((Reshaped, "announced"), (Twice, "once"), (Extra, r"visual\.weight")):
        rollout = HfRollout(tmp_path / "new", device=DEVICE, dtype="float32")
        with pytest.raises(RuntimeError, match=named):
            rollout.update_weights(faulty(weights), 1)
        with pytest.raises(RuntimeError, match="did not succeed"):
            rollout.generate(REQUESTS, GREEDY)


@pytest.mark.skipif(DEVICE != "cpu", reason="one gloo rank is enough")
def test_sharded_weights_are_gathered(tmp_path: Path) -> None:
    rollout = HfRollout(build_tiny_model(tmp_path / "old"), dtype="float32")
    weights = new_weights(tmp_path)
    if dist.is_initialized():  # what another package's tests left in this process
        dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        sharded = {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in weights.items()}
        report = rollout.update_weights(TensorSource(sharded), 1)
    finally:
        dist.destroy_process_group()
    assert report.checksum == add_up(weight_checksum(name, tensor) for name, tensor in weights.items())
    assert generated(rollout) == generated(HfRollout(tmp_path / "new", dtype="float32"))
