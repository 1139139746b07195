"""What each phase of a step holds on the device at its peak, in bytes: formulas read off the engines' code.

All models stay where they are during the whole step, so a phase's peak is what is resident plus the largest of the
stages that the phase goes through. T is the tokens of a micro-batch, K those that the model is asked about (the sampled
ones), V the vocabulary; c is the bytes of the dtype that a pass computes in.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from verl_cli.plan.arithmetic import MicroBatch, Wave
from verl_cli.plan.model_size import Architecture, Weights
from verl_cli.plan.placement import Device

#: Log-probs, entropy and sampling never compute in less than float32.
_FLOAT32, _FLOAT64, _INT64 = 4, 8, 8
#: Rows of logits that the engine's entropy without gradient takes at a time.
_ENTROPY_ROWS = 1024
#: Elements that the weights' checksum widens to 64 bits at a time, on an accelerator and on a CPU.
_CHECKSUM_ELEMENTS = {"cuda": 1 << 22, "cpu": 1 << 15}
#: cuBLAS' workspace on the stream that computes (torch's default on Hopper; smaller before).
CUBLAS_BYTES = 32 << 20


@dataclass(frozen=True)
class Footprint:
    """Bytes by what they hold."""

    parameters: int = 0
    """Stored parameters, and the copies of them that are gathered for a pass."""
    gradients: int = 0
    optimizer: int = 0
    """Moments."""
    activations: int = 0
    """Everything that depends on the tokens, logits included, except keys and values."""
    kv_cache: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))

    def __add__(self, other: "Footprint") -> "Footprint":
        return Footprint(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


@dataclass(frozen=True)
class Stage:
    """A moment of a phase."""

    name: str
    footprint: Footprint


@dataclass(frozen=True)
class TrainedModel:
    """A model as the training engine holds it: sharded over one rank, gathered layer by layer."""

    architecture: Architecture
    weights: Weights
    storage: int
    """Bytes of a stored parameter, and of its gradient and moments."""
    compute: int
    """Bytes of an element in a pass."""
    trained: bool
    value_head: bool
    checkpointing: bool
    """Whether layers are computed again in the backward pass."""
    reshard: bool
    """Whether gathered layers are freed after their forward pass."""
    packed_kernel: bool
    """Whether attention runs in the variable-length kernel; otherwise over right-padded rows."""

    @property
    def resident(self) -> Footprint:
        """What it holds at all times."""
        stored = self.storage * self.weights.total
        return Footprint(parameters=stored, optimizer=2 * stored if self.trained else 0)


def layer_activations(model: Architecture, compute: int, *, packed_kernel: bool) -> int:
    """Bytes a token that one layer keeps for its backward pass.

    Each norm keeps its input in float32, and its result before and after the weight. Attention keeps queries, keys,
    values and its result, which the output projection reads, and a float32 number a head; over padded rows it keeps
    them a second time. The feed-forward part keeps the gate before and after its activation, the other branch and
    their product.
    """
    norm = (max(_FLOAT32, compute) + 2 * compute) * model.hidden
    attention = compute * (2 * model.query_width + 2 * model.kv_width) * (1 if packed_kernel else 2)
    attention += _FLOAT32 * model.heads
    if model.kind == "qwen3":  # norms of queries and keys, whose results the rotation does not keep
        attention += (max(_FLOAT32, compute) + compute) * (model.query_width + model.kv_width)
    return 2 * norm + attention + 4 * compute * model.intermediate


def passing_activations(model: Architecture, compute: int) -> int:
    """Bytes a token while one layer computes without keeping anything: its input, the residual, and its widest part."""
    feed_forward = 4 * model.hidden + 3 * model.intermediate
    attention = 2 * model.hidden + 4 * model.query_width + 2 * model.kv_width
    norm = 2 * _FLOAT32 * model.hidden + 2 * compute * model.hidden
    return max(compute * feed_forward, compute * attention, norm)


def forward_stages(model: TrainedModel, micro_batches: Iterable[MicroBatch], *, entropy: bool) -> list[Stage]:
    """The stages of a pass without gradient."""
    sizes, weights, c = model.architecture, model.weights, model.compute
    root = c * weights.outside_layers
    layer = c * (weights.largest_layer if model.reshard else weights.total - weights.outside_layers)
    stages = []
    for micro in micro_batches:
        passing = passing_activations(sizes, c) * micro.tokens
        stages.append(Stage("layers", Footprint(parameters=root + layer, activations=passing)))
        if not model.value_head:
            rows = micro.targets + (min(micro.targets, _ENTROPY_ROWS) if entropy else 0)
            taken = 2 * max(_FLOAT32, c) * rows * sizes.vocabulary  # logits and their log-softmax, or p and p log p
            gathered = 0 if model.reshard else root + layer
            stages.append(Stage("logits", Footprint(parameters=gathered, activations=taken)))
    return stages


def update_stages(model: TrainedModel, micro_batches: Sequence[MicroBatch], *, entropy: bool) -> list[Stage]:
    """The stages of an update over the micro-batches of one mini-batch.

    At the logits, all that the forward pass kept is there beside the logits' gradients. Layer by layer those are then
    traded for gradients of the parameters. At the end the engine sums up the gradients of what lies outside the layers.
    """
    sizes, weights, c = model.architecture, model.weights, model.compute
    wide = max(_FLOAT32, c)
    root, layer, inside = weights.outside_layers, weights.largest_layer, weights.total - weights.outside_layers
    gathered = 0 if model.reshard else c * weights.total
    in_layers = gathered or c * (root + layer)
    # The sum over the micro-batches before; which of them is the last depends on the rows that a step draws.
    accumulated = model.storage * weights.total if len(micro_batches) > 1 else 0
    done = max(accumulated, model.storage * inside)  # when the backward pass has left the layers
    # A layer's gradients in the dtype of the pass, and three times as they are summed up; the head's wait for the end.
    waiting = (c + 3 * wide) * layer + (0 if model.value_head else c * sizes.vocabulary * sizes.hidden)
    kept_layer = layer_activations(sizes, c, packed_kernel=model.packed_kernel)
    again = kept_layer if model.checkpointing else 0
    last_layer = kept_layer + (c * sizes.hidden if model.checkpointing else 0)
    # The gradients of the feed-forward part while it still holds its activations.
    backward = c * (2 * sizes.intermediate + 2 * sizes.hidden)
    stages = []
    for micro in micro_batches:
        kept = _kept(model, kept_layer, micro)
        if not model.value_head:
            # Log-softmax, its gradient and the gradient of the logits; the entropy adds exp(log p) and its gradient.
            logits = (5 if entropy else 3) * wide * micro.targets * sizes.vocabulary
            stages.append(Stage("logits", Footprint(gathered, accumulated, activations=kept + logits)))
        first = kept + (again + backward) * micro.tokens
        last = (last_layer + backward) * micro.tokens
        stages.append(Stage("layers", Footprint(in_layers, accumulated + waiting, activations=first)))
        stages.append(Stage("layers", Footprint(in_layers, done + waiting, activations=last)))
    summed = wide * (3 * root + layer)
    stages.append(Stage("sum of gradients", Footprint(gathered, done + summed)))
    return stages


def _kept(model: TrainedModel, kept_layer: int, micro: MicroBatch) -> int:
    """Bytes that the forward pass keeps: of every layer all activations or its input, of the last norm, of the head."""
    sizes, c = model.architecture, model.compute
    a_token = sizes.layers * (c * sizes.hidden if model.checkpointing else kept_layer)
    a_token += (max(_FLOAT32, c) + c) * sizes.hidden
    if model.value_head:  # a dropout of 0 keeps its mask and its result
        return (a_token + (1 + c) * sizes.hidden) * micro.tokens
    return a_token * micro.tokens + c * sizes.hidden * micro.targets


@dataclass(frozen=True)
class Generator:
    """The model as the rollout engine holds it."""

    architecture: Architecture
    weights: Weights
    dtype: int
    """Bytes of a weight, and of an element in a pass."""
    top_k: bool
    top_p: bool

    @property
    def resident(self) -> Footprint:
        """What it holds at all times."""
        return Footprint(parameters=self.dtype * self.weights.total)


def kv_bytes(model: Architecture, dtype: int) -> int:
    """Bytes of a token's keys and values in all layers."""
    return 2 * dtype * model.layers * model.kv_width


def sampling_bytes(dtype: int, *, top_k: bool, top_p: bool) -> int:
    """Bytes a sequence and vocabulary entry while a token is drawn from (B, V) logits.

    The logits, in float32 too, the probabilities, and their cumulative sum in float64, which is computed from a copy in
    float64. top_k and top_p sort them first (values and ids), top_p with a cumulative sum of its own, before and after
    subtraction, and a mask.
    """
    held = dtype + 2 * _FLOAT32
    drawing = 2 * _FLOAT64
    if not (top_k or top_p):
        return held + drawing
    sorting = _FLOAT32 + _INT64 + _FLOAT32 + (2 * _FLOAT64 + 1 if top_p else 0)
    return held + max(drawing, sorting)


def generation_stages(model: Generator, waves: Iterable[Wave]) -> list[Stage]:
    """The stages of generating: the prompts of a wave at once, then the last token of its longest responses.

    The cache grows by a copy, one layer's keys (or values) at a time.
    """
    sizes, c = model.architecture, model.dtype
    drawing = sampling_bytes(c, top_k=model.top_k, top_p=model.top_p) * sizes.vocabulary
    stages = []
    for wave in waves:
        prompt_tokens = wave.prompts * wave.prompt_tokens
        # Where prompts differ in length a mask says what is padding, as booleans and once more in the model's dtype.
        mask = (1 + c) * prompt_tokens * wave.prompt_tokens if wave.padded else 0
        prefill = Footprint(
            activations=passing_activations(sizes, c) * prompt_tokens + mask,
            kv_cache=kv_bytes(sizes, c) * prompt_tokens,
        )
        stages.append(Stage("prompts", prefill))
        cached = wave.sequences * wave.tokens
        cache = kv_bytes(sizes, c) * cached
        growth = c * sizes.kv_width * cached
        stages.append(Stage("last token, cache", Footprint(kv_cache=cache + growth)))
        stages.append(Stage("last token, sampling", Footprint(activations=drawing * wave.sequences, kv_cache=cache)))
    return stages


def sync_stages(trained: TrainedModel, rollout: Generator, device: Device) -> list[Stage]:
    """The stage of bringing weights to the rollout: one weight at a time is cast, and summed up chunk by chunk."""
    largest = trained.weights.largest_tensor
    cast = 0 if trained.storage == rollout.dtype else rollout.dtype * largest
    widened = _INT64 * min(largest, _CHECKSUM_ELEMENTS[device])
    return [Stage("largest weight", Footprint(parameters=cast + widened))]


def peak(stages: Iterable[Stage]) -> Stage:
    """The stage that needs most."""
    return max(stages, key=lambda stage: stage.footprint.total)
