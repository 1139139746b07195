"""What a training engine is built from; every field says why it exists. Names are the published configuration keys."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

#: torch's name of each dtype by the names that a configuration may use.
_DTYPES = {
    "fp32": "float32",
    "float32": "float32",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp64": "float64",
    "float64": "float64",
}
DTYPES = tuple(_DTYPES)


def _torch_name(name: str) -> str:
    if name not in _DTYPES:
        raise ValueError(f"Unknown dtype {name!r} for a training engine; use one of {', '.join(_DTYPES)}.")
    return _DTYPES[name]


def parse_dtype(name: str) -> "torch.dtype":
    """Return the dtype called `name`; ValueError lists the names (float16 is absent: it would need loss scaling)."""
    import torch  # here, so that a configuration can be checked without it

    dtype: torch.dtype = getattr(torch, _torch_name(name))
    return dtype


@dataclass(frozen=True)
class ModelConfig:
    """Which model to load, and how."""

    path: str
    """A Hugging Face folder, or a name that transformers can resolve."""
    tokenizer_path: str | None = None
    """Folder of the tokenizer (of an export, and of whoever else works with this model); null: `path`."""
    trust_remote_code: bool = False
    """Whether Python code inside the folder may run; off because it is code from somebody else."""
    enable_gradient_checkpointing: bool = True
    """Recompute each layer in the backward pass: far less activation memory for about a third more time."""
    override_config: dict[str, Any] = field(default_factory=dict)
    """Values that replace those of the folder's config.json, such as a longer context."""


@dataclass(frozen=True)
class OptimConfig:
    """AdamW and its learning-rate schedule; steps are optimiser steps."""

    lr: float = 1e-6
    """Peak learning rate."""
    lr_warmup_steps: int = -1
    """Optimiser steps of linear warm-up; negative: taken from `lr_warmup_steps_ratio`."""
    lr_warmup_steps_ratio: float = 0.0
    """Warm-up as a share of `total_training_steps`, for runs whose length changes."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """What the rate does after warm-up."""
    min_lr_ratio: float = 0.0
    """Where linear and cosine end, as a share of `lr`: 0 stops learning at the last step."""
    num_cycles: float = 0.5
    """Cosine waves until the last step: one half goes from the peak to the minimum."""
    weight_decay: float = 0.01
    """Decoupled weight decay (AdamW), on every parameter."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the first and second moment."""
    clip_grad: float = 1.0
    """Largest global gradient norm; a bigger gradient is scaled down to it."""
    total_training_steps: int = -1
    """Optimiser steps of the whole run, filled in by the trainer: the schedules that end need their end."""


@dataclass(frozen=True)
class FsdpConfig:
    """Sharding and precision (FSDP2)."""

    model_dtype: str = "fp32"
    """Dtype in which parameters are stored and updated; training below fp32 would round small updates away."""
    dtype: str | None = None
    """Dtype of the forward and backward pass; null: bfloat16 on an accelerator, fp32 on a CPU, fp64 for fp64
    parameters."""
    reshard_after_forward: bool = True
    """Free a layer's gathered parameters after its forward pass, to gather them again in the backward pass."""


@dataclass(frozen=True)
class EngineConfig:
    """Everything that a training engine needs to start."""

    model: ModelConfig
    """The model."""
    optim: OptimConfig | None = field(default_factory=OptimConfig)
    """The optimiser; None: a frozen model (a reference), which keeps no gradients or moments."""
    fsdp: FsdpConfig = field(default_factory=FsdpConfig)
    """Sharding and precision."""
    head: Literal["lm", "value"] = "lm"
    """`lm`: log-probs over the vocabulary (actor, reference). `value`: one number a token (critic)."""
    max_tokens_per_micro_batch: int | None = None
    """Hard cap on the tokens of one forward and backward pass: bounds activation memory. None: no cap."""
    max_sequences_per_micro_batch: int | None = None
    """Hard cap on the sequences of one forward and backward pass. None: no cap."""
    temperature: float = 1.0
    """Sampling temperature of the rollout: logits are divided by it, so that log-probs are those of the sampler."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the model computes."""

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}; logits are divided by it, so it must be above 0.")
        if self.fsdp.dtype is not None:
            _torch_name(self.fsdp.dtype)
        if _torch_name(self.fsdp.model_dtype) == "bfloat16" and self.optim is not None:
            raise ValueError(
                f"model_dtype={self.fsdp.model_dtype} with an optimiser would round small updates away (the spacing of "
                "bfloat16 below 1 is 0.0039). Keep model_dtype=fp32 and set dtype=bfloat16 to compute in bfloat16."
            )

    @property
    def storage_dtype(self) -> "torch.dtype":
        """Dtype in which parameters are stored."""
        return parse_dtype(self.fsdp.model_dtype)

    @property
    def compute_dtype(self) -> "torch.dtype":
        """Dtype of the forward and backward pass."""
        if self.fsdp.dtype is not None:
            return parse_dtype(self.fsdp.dtype)
        if _torch_name(self.fsdp.model_dtype) == "float64":
            return parse_dtype("float64")
        return parse_dtype("float32" if self.device == "cpu" else "bfloat16")
