"""The oracle: a plain module, one sequence at a time, all logits, PyTorch's own tools. Slow, obvious; for tests."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from verl_data import PackedBatch

from verl_engine.config import EngineConfig, OptimConfig
from verl_engine.interface import Denominators, Loss, Output
from verl_engine.loading import load_model
from verl_engine.metrics import Metric, Metrics
from verl_engine.precision import keep_precision
from verl_engine.schedule import lr_multiplier


class PlainEngine:
    """Computes what `TrainEngine.forward` and `train_batch` must give, from the whole mini-batch of all ranks."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.model = load_model(config, attn_implementation="sdpa").to(config.device).eval()
        self._steps = 0
        optim = config.optim or OptimConfig()
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=0.0, betas=optim.betas, weight_decay=optim.weight_decay
        )

    def forward(self, batch: PackedBatch, outputs: Sequence[Output]) -> dict[str, NDArray[np.float32]]:
        """Token columns (T,), without gradient."""
        with torch.no_grad(), keep_precision(self.config.compute_dtype):
            found = [self._sequence(columns) for columns in self._sequences(batch)]
        return {name: torch.cat([one[name] for one in found]).float().cpu().numpy() for name in outputs}

    def train_batch(self, batch: PackedBatch, loss: Loss, denominators: Denominators) -> Metrics:
        """One optimiser step; metrics `loss` and `grad_norm`."""
        assert self.config.optim is not None
        total = 0.0
        for columns in self._sequences(batch):
            with keep_precision(self.config.compute_dtype):
                value, _ = loss(self._sequence(columns), columns, denominators)
                torch.autograd.backward(value)
            total += float(value.detach())
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optim.clip_grad)
        self._steps += 1
        self._optimizer.param_groups[0]["lr"] = self.config.optim.lr * lr_multiplier(self._steps, self.config.optim)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return {"loss": Metric(total, "sum", over_steps="mean"), "grad_norm": Metric.mean(float(norm))}

    def weights(self) -> dict[str, NDArray[np.float64]]:
        """Copies of all weights."""
        return {name: weight.detach().double().cpu().numpy() for name, weight in self.model.named_parameters()}

    def _sequences(self, batch: PackedBatch) -> Iterator[dict[str, torch.Tensor]]:
        for row in range(len(batch)):
            yield batch.select([row]).to_torch(self.config.device)

    def _sequence(self, columns: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        ids, sampled = columns["input_ids"], columns["sampled_mask"].clone()
        sampled[0] = False
        logits = self.model(input_ids=ids[None], use_cache=False).logits[0]
        # The output after token t - 1 speaks about token t; nothing speaks about the first one.
        before = torch.cat([torch.zeros_like(logits[:1]), logits[:-1]]) / self.config.temperature
        if self.config.head == "value":
            return {"values": torch.where(sampled, before[:, 0] * self.config.temperature, 0.0)}
        logprobs = functional.log_softmax(before, dim=-1)
        return {
            "logprobs": torch.where(sampled, logprobs.gather(-1, ids[:, None])[:, 0], 0.0),
            "entropy": torch.where(sampled, -(logprobs.exp() * logprobs).sum(-1), 0.0),
            "sum_pi_squared": torch.where(sampled, functional.softmax(before, dim=-1).square().sum(-1), 0.0),
        }
