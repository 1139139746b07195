"""`TrainEngine` over FSDP2: parameters, gradients and moments sharded over all ranks, at every number of ranks."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from verl_data import PackedBatch, pack

from verl_engine import checkpoint, gradients
from verl_engine.config import EngineConfig
from verl_engine.errors import EngineError
from verl_engine.export import export_model
from verl_engine.interface import Denominators, Loss, Output, Part
from verl_engine.loading import decoder_layers, load_model
from verl_engine.metrics import Metric, Metrics, merge_metrics
from verl_engine.outputs import compute_outputs, model_inputs
from verl_engine.precision import keep_precision
from verl_engine.process_group import init_single_process, max_over_ranks
from verl_engine.schedule import lr_multiplier
from verl_engine.weights import ShardedWeights

# What a rank computes while others still have micro-batches: the collectives of a pass, and gradients of exactly zero.
_DUMMY = PackedBatch.from_sequences({"input_ids": [np.zeros(2, np.int64)], "sampled_mask": [np.array([False, True])]})
_GIBIBYTE = 2**30
_VALUE_OUTPUTS: frozenset[Output] = frozenset({"values"})
_LM_OUTPUTS: frozenset[Output] = frozenset(get_args(Output)) - _VALUE_OUTPUTS


class FsdpEngine:
    """A transformers model, fully sharded over the default process group, that computes and trains on packed sequences.

    Every method that computes is collective: all ranks call it together, each with its own share of the mini-batch.
    Without a process group the engine starts one of this process alone. Gradients are sums over ranks, because losses
    divide by global denominators themselves.
    """

    def __init__(self, config: EngineConfig) -> None:
        init_single_process(config.device)
        self.config = config
        self._device = torch.device(f"cuda:{torch.cuda.current_device()}" if config.device == "cuda" else "cpu")
        self._allowed = _VALUE_OUTPUTS if config.head == "value" else _LM_OUTPUTS
        self._offloaded: set[Part] = set()
        self._steps = 0
        self._model = load_model(config)
        self._vocabulary_size: int = self._model.get_input_embeddings().weight.shape[0]
        if config.optim is None:
            self._model.requires_grad_(False)
        elif config.model.enable_gradient_checkpointing:
            _recompute(self._model, config.compute_dtype)
        _shard(self._model, config)
        self._parameters: dict[str, torch.nn.Parameter] = dict(self._model.named_parameters())
        self._optimizer = None if config.optim is None else _adamw(self._parameters, config)

    @property
    def steps(self) -> int:
        """Optimiser steps taken."""
        return self._steps

    def forward(
        self, batch: PackedBatch, outputs: Sequence[Output], adapter: bool = True
    ) -> dict[str, NDArray[np.float32]]:
        """Compute token columns (T,), float32, in the batch's own order, without gradient; 0 where no token was
        sampled.

        The micro-batches are those of `train_batch` on the same batch, so that log-probs are equal bit for bit.
        `adapter` makes no difference: the model has none.
        """
        self._check(outputs, "params")
        columns: dict[str, NDArray[np.float32]] = {name: np.zeros(batch.num_tokens, np.float32) for name in outputs}
        self._model.eval()
        with torch.no_grad(), keep_precision(self.config.compute_dtype):
            for rows in self._rounds(batch):
                part = _DUMMY if rows is None else batch.select(rows)
                found = compute_outputs(self._model, model_inputs(part, self._device), outputs, self.config.temperature)
                if rows is not None:
                    places = _token_places(batch.cu_seqlens, rows)
                    for name, value in found.items():
                        columns[name][places] = value.float().cpu().numpy()
        return columns

    def train_batch(self, batch: PackedBatch, loss: Loss, denominators: Denominators) -> Metrics:
        """Take one optimiser step on this rank's share of a mini-batch.

        Besides the loss's metrics: `grad_norm` (before clipping), `lr` (the rate that the step used),
        `grad_norm_nonfinite` (1 for a step that was not taken), and on a GPU `perf/max_memory_allocated_gb` and
        `perf/max_memory_reserved_gb`. A gradient that is not finite on any rank is dropped on all: parameters, moments
        and schedule stay as they are. A mini-batch without trained tokens (`denominators.tokens` 0) computes nothing;
        both report `lr` 0.
        """
        self._check(loss.outputs, "params", "optimizer")
        if self._optimizer is None:
            raise EngineError(
                f"{self.config.model.path} is frozen (optim=None) and does not train; configure an optimiser."
            )
        if denominators.tokens == 0:
            return self._step_metrics(norm=0.0, rate=0.0)
        parts: list[Metrics] = []
        self._model.train()
        with keep_precision(self.config.compute_dtype):
            for rows in self._rounds(batch):
                part = _DUMMY if rows is None else batch.select(rows)
                found = compute_outputs(
                    self._model, model_inputs(part, self._device), loss.outputs, self.config.temperature
                )
                if rows is None:
                    first = next(iter(found.values()))
                    torch.autograd.backward(first, torch.zeros_like(first))
                    continue
                value, metrics = loss(found, part.to_torch(self._device), denominators)
                torch.autograd.backward(value)
                parts.append(metrics)
        return merge_metrics(parts) | self._step()

    def weights(self) -> ShardedWeights:
        """The current weights, as DTensors under Hugging Face names."""
        self._check((), "params")
        return ShardedWeights(self._model)

    def save(self, directory: Path) -> None:
        """Write parameters, moments and the schedule's position; replaces `directory` once everything is on disk."""
        self._check((), "params", "optimizer")
        checkpoint.save_state(Path(directory), self._state(), self._steps)

    def load(self, directory: Path) -> None:
        """Go on from what `save` wrote, on any number of ranks; a frozen engine takes only the parameters.

        Raises CheckpointError for a folder that is partial, damaged or of another model. Hyperparameters are those of
        this engine's configuration, not of the writer's.
        """
        self._check((), "params", "optimizer")
        self._steps = checkpoint.load_state(Path(directory), self._state())

    def export(self, directory: Path) -> None:
        """Write a Hugging Face folder that AutoModelForCausalLM (value head: AutoModelForTokenClassification) loads."""
        export_model(self._model, self.weights(), self.config.model, Path(directory))

    def onload(self, parts: Sequence[Part]) -> None:
        """Bring parts back to the accelerator; on a CPU only the bookkeeping changes."""
        self._move(parts, self._device)
        self._offloaded -= set(parts)

    def offload(self, parts: Sequence[Part]) -> None:
        """Move parts to host memory and drop gradients; what needs a part then fails until `onload`."""
        self._move(parts, torch.device("cpu"))
        self._offloaded |= set(parts) - {"grads"}
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _rounds(self, batch: PackedBatch) -> list[NDArray[np.int64] | None]:
        """Return the rows of each micro-batch, and a None for each one that other ranks have more. Collective.

        Token ids are checked here, once per batch: in the model they would be an IndexError, or end the CUDA context.
        """
        self._check_vocabulary(batch)
        plan = pack(
            batch.lengths,
            max_tokens=self.config.max_tokens_per_micro_batch,
            max_sequences=self.config.max_sequences_per_micro_batch,
        )
        return [*plan, *[None] * (max_over_ranks(len(plan), self._device) - len(plan))]

    def _step(self) -> Metrics:
        assert self._optimizer is not None and self.config.optim is not None
        shards = gradients.local_gradients(self._parameters.values())
        norm = gradients.global_norm(shards, self._device)
        rate = 0.0
        if math.isfinite(norm):
            gradients.clip(shards, norm, self.config.optim.clip_grad)
            rate = self.config.optim.lr * lr_multiplier(self._steps + 1, self.config.optim)
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            self._optimizer.step()
            self._steps += 1
        self._optimizer.zero_grad(set_to_none=True)
        return self._step_metrics(norm, rate)

    def _step_metrics(self, norm: float, rate: float) -> Metrics:
        # Every rank knows the same norm and rate.
        metrics: Metrics = {
            "grad_norm": Metric.mean(norm),
            "grad_norm_nonfinite": Metric(float(not math.isfinite(norm)), "max", over_steps="sum"),
            "lr": Metric(rate, "last"),
        }
        if self._device.type == "cuda":
            metrics["perf/max_memory_allocated_gb"] = Metric(torch.cuda.max_memory_allocated() / _GIBIBYTE, "max")
            metrics["perf/max_memory_reserved_gb"] = Metric(torch.cuda.max_memory_reserved() / _GIBIBYTE, "max")
        return metrics

    def _state(self) -> dict[str, torch.Tensor]:
        """Everything that a checkpoint holds, by name; the tensors share memory with the engine."""
        state = {f"model.{name}": parameter.detach() for name, parameter in self._parameters.items()}
        if self._optimizer is not None:
            for name, parameter in self._parameters.items():
                moments = self._optimizer.state[parameter]
                state |= {f"optimizer.{kind}.{name}": moments[kind] for kind in ("step", "exp_avg", "exp_avg_sq")}
        return state

    def _move(self, parts: Sequence[Part], device: torch.device) -> None:
        if "grads" in parts and self._optimizer is not None:
            self._optimizer.zero_grad(set_to_none=True)
        if self._device.type == "cpu":
            return
        if "params" in parts:
            self._model.to(device)
        if "optimizer" in parts and self._optimizer is not None:
            for moments in self._optimizer.state.values():
                for kind, tensor in moments.items():
                    moments[kind] = tensor.to(device)

    def _check(self, outputs: Sequence[Output], *parts: Part) -> None:
        """Refuse what this engine cannot give, before anything is computed."""
        absent = self._offloaded.intersection(parts)
        if absent:
            raise EngineError(
                f"{', '.join(sorted(absent))} of {self.config.model.path} are offloaded; call onload first."
            )
        wrong = [name for name in outputs if name not in self._allowed]
        if wrong:
            raise EngineError(
                f"{self.config.model.path} is loaded with head={self.config.head}, which gives "
                f"{', '.join(sorted(self._allowed))}, not {', '.join(wrong)}. Use an engine with the other head."
            )

    def _check_vocabulary(self, batch: PackedBatch) -> None:
        ids = batch["input_ids"]
        if len(ids) == 0:
            return
        smallest, largest = int(ids.min()), int(ids.max())
        if smallest < 0 or largest >= self._vocabulary_size:
            raise EngineError(
                f"The batch holds token id {smallest if smallest < 0 else largest}, but the vocabulary of "
                f"{self.config.model.path} (head={self.config.head}) has {self._vocabulary_size} tokens, 0 to "
                f"{self._vocabulary_size - 1}. Actor, reference, critic and tokenizer must share one vocabulary: "
                "choose models of the same family."
            )


def _recompute(model: Any, dtype: torch.dtype) -> None:
    """Recompute the activations of each layer in the backward pass."""
    # transformers renamed the method in 5.2x and warns about the old name.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    # Nothing random happens in a pass, so no generator state has to be kept for the second one.
    enable(
        {
            "use_reentrant": False,
            "preserve_rng_state": False,
            "context_fn": lambda: (nullcontext(), keep_precision(dtype)),  # of the first pass, and of the second
        }
    )


def _shard(model: Any, config: EngineConfig) -> None:
    mesh = init_device_mesh(config.device, (dist.get_world_size(),), mesh_dim_names=("dp",))
    compute = config.compute_dtype
    precision = MixedPrecisionPolicy(
        param_dtype=None if compute == config.storage_dtype else compute,
        reduce_dtype=torch.promote_types(compute, torch.float32),
    )
    reshard = config.fsdp.reshard_after_forward
    for layer in decoder_layers(model):
        fully_shard(layer, mesh=mesh, mp_policy=precision, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=precision, reshard_after_forward=reshard)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # FSDP2 averages over ranks by default; gloo knows plain sums only.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def _adamw(parameters: dict[str, torch.nn.Parameter], config: EngineConfig) -> torch.optim.AdamW:
    """AdamW with its moments in the storage dtype, there from the start: a checkpoint always has them all."""
    assert config.optim is not None
    optimizer = torch.optim.AdamW(
        parameters.values(),
        lr=config.optim.lr,
        betas=config.optim.betas,
        weight_decay=config.optim.weight_decay,
        fused=True,
    )
    for parameter in parameters.values():
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=config.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def _token_places(cu_seqlens: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where the tokens of `rows`, one row after another, stand in the whole batch."""
    starts, lengths = cu_seqlens[rows], cu_seqlens[rows + 1] - cu_seqlens[rows]
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())
