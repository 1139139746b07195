"""Out of memory: which memory, in which phase, and the key that needs less of it."""

import errno
import re
from collections.abc import Iterator
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from verl_cli.failures.place import Place
from verl_cli.failures.text import message

if TYPE_CHECKING:
    from verl_cli.config import RunConfig

_GPU = re.compile(r"CUDA out of memory|CUDA error: out of memory|Cuda failure.*out of memory|STATUS_ALLOC_FAILED")
_HOST = re.compile(
    r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|std::bad_alloc|Cannot allocate memory|os error 12\b"
)
_AMOUNTS = (  # of torch on a GPU, of numpy, of torch on a CPU
    re.compile(r"[Tt]ried to allocate (?P<amount>[\d.]+ [KMGT]?i?B)\b"),
    re.compile(r"Unable to allocate (?P<amount>[\d.]+ [KMGTPE]?i?B)\b"),
    re.compile(r"(?:tried to allocate|buy new RAM!|malloc of size|realloc of size) ?(?P<bytes>\d+)"),
)
_CAPACITY = re.compile(
    r"GPU (?P<index>\d+) has a total capacity of (?P<total>[\d.]+ \w+) of which (?P<free>[\d.]+ \w+)"
)
_FRAGMENTS = re.compile(r"(?P<amount>[\d.]+) GiB is reserved by PyTorch but unallocated")

_MODEL = "actor_rollout_ref.model"
_RESPONSE = "data.max_response_length"


class _MicroBatches(NamedTuple):
    """The keys that cut a role's micro-batches."""

    sequences: str
    tokens: str
    by_tokens: str
    model: str


_MICRO_BATCHES = {
    "actor": _MicroBatches(
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
        "actor_rollout_ref.actor.use_dynamic_bsz",
        _MODEL,
    ),
    "ref": _MicroBatches(
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
        "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
        "actor_rollout_ref.ref.log_prob_use_dynamic_bsz",
        _MODEL,
    ),
    "critic": _MicroBatches(
        "critic.ppo_micro_batch_size_per_gpu",
        "critic.ppo_max_token_len_per_gpu",
        "critic.use_dynamic_bsz",
        "critic.model",
    ),
}
#: Whose micro-batches a phase works on.
_COMPUTES = {
    "old_log_prob": "actor",
    "update_actor": "actor",
    "ref": "ref",
    "values": "critic",
    "update_critic": "critic",
}


def memory_of(error: BaseException) -> Literal["GPU", "host"] | None:
    """Which memory `error` says has run out; None if it says something else."""
    text = message(error)
    if type(error).__name__ == "OutOfMemoryError" or _GPU.search(text):
        return "GPU"
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return "host"
    return "host" if _HOST.search(text) else None


def out_of_memory(error: BaseException, memory: Literal["GPU", "host"], place: Place) -> str:
    """The paragraph about `error`, which `memory_of` has recognised."""
    text = message(error)
    whose = "The GPU's memory" if memory == "GPU" else "This machine's main memory (or the process's limit of it)"
    asked = f"{amount} more was asked for" if (amount := _amount(text)) else "more was asked for than there is"
    capacity = _CAPACITY.search(text)
    has = f" (GPU {capacity['index']} has {capacity['total']}, {capacity['free']} of it free)" if capacity else ""
    parts = [f"{whose} ran out{place.words}: {asked}{has}.", *_remedies(place)]
    fragments = _FRAGMENTS.search(text)
    if fragments and float(fragments["amount"]) >= 1:
        parts.append(
            f"{fragments['amount']} GiB lie in pieces that are too small: PYTORCH_ALLOC_CONF=expandable_segments:True "
            "in the environment may suffice."
        )
    return " ".join(parts)


def _amount(text: str) -> str | None:
    for pattern in _AMOUNTS:
        if found := pattern.search(text):
            groups = found.groupdict()
            return groups["amount"] if "amount" in groups else size(int(groups["bytes"]))
    return None


def size(count: int) -> str:
    """A number of bytes in the unit in which it is easy to read."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            return f"{count} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} PiB"


def _remedies(place: Place) -> Iterator[str]:
    config, phase = place.config, place.phase
    if place.role is not None:
        yield from _start(place.role, config)
    elif phase in _COMPUTES:
        yield from _compute(_COMPUTES[phase], config, updates=phase.startswith("update_"))
    elif phase in ("gen", "testing"):
        waves = "actor_rollout_ref.rollout.max_num_seqs"
        yield (
            f"Lower {_now(waves, config)}, the sequences that are decoded together, or {_now(_RESPONSE, config)}, for "
            "whose tokens keys and values are kept."
        )
    elif phase == "save_checkpoint":
        yield (
            "The whole model is gathered in main memory to be written: run where there is as much of it free as the "
            "model's weights take, or choose a smaller model."
        )
    elif phase is None:
        yield "Use a smaller model or fewer and shorter rows, or a machine with more memory."
    else:
        scored = " if it is not the reward function itself that needs it" if phase == "reward" else ""
        yield (
            f"Lower {_now('data.train_batch_size', config)} (prompts) or {_now('actor_rollout_ref.rollout.n', config)} "
            f"(responses of each), whose whole batch this process holds{scored}; or {_now(_RESPONSE, config)}."
        )


def _compute(role: str, config: "RunConfig | None", *, updates: bool) -> Iterator[str]:
    keys = _MICRO_BATCHES[role]
    if config is None:
        yield f"Lower {keys.sequences}, or {keys.tokens} where micro-batches are cut by tokens."
    else:
        yield _smaller_micro_batches(keys, config)
    checkpointing = f"{keys.model}.enable_gradient_checkpointing"
    if updates and (config is None or not _value(checkpointing, config)):
        yield f"{checkpointing}=true stores far fewer activations for about a third more time."


def _smaller_micro_batches(keys: _MicroBatches, config: "RunConfig") -> str:
    sequences, tokens = _value(keys.sequences, config), _value(keys.tokens, config)
    shorter = f"lower {_now(_RESPONSE, config)}, or choose a smaller model."
    if sequences is not None and not _value(keys.by_tokens, config):
        if sequences > 1:
            return f"Lower {keys.sequences} (now {sequences} sequences); the result does not change."
        return f"A micro-batch is one sequence already ({keys.sequences}=1): {shorter}"
    longest = config.data.max_prompt_length + config.data.max_response_length
    if tokens > longest:
        return (
            f"Lower {keys.tokens} (now {tokens} tokens; {longest}, the longest sequence, is the least that works); the "
            "result does not change."
        )
    return f"A micro-batch holds one longest sequence at most already ({keys.tokens}={tokens}): {shorter}"


def _start(role: str, config: "RunConfig | None") -> Iterator[str]:
    path = "critic.model.path" if role == "critic" else f"{_MODEL}.path"
    yield f"Choose a smaller model ({_now(path, config)}), or a machine with more memory."
    if role in ("actor", "critic"):
        yield "Weights, gradients and AdamW's two moments take 16 bytes a parameter."
    if role == "critic":
        yield "algorithm.adv_estimator=grpo trains without a critic."
    if role == "ref":
        yield (
            "Without a KL term no reference is loaded: algorithm.kl_ctrl.kl_coef=0 and "
            "actor_rollout_ref.actor.use_kl_loss=false."
        )
    if role == "rollout":
        yield "actor_rollout_ref.rollout.dtype=bfloat16 halves its copy of float32 weights."
    checkpointing = f"{_MICRO_BATCHES[role].model if role in _MICRO_BATCHES else _MODEL}.enable_gradient_checkpointing"
    if role in ("actor", "critic") and config is not None and not _value(checkpointing, config):
        yield f"Training itself will need less with {checkpointing}=true."


def _value(key: str, config: "RunConfig") -> Any:
    return reduce(getattr, key.split("."), config)


def _now(key: str, config: "RunConfig | None") -> str:
    return key if config is None else f"{key} (now {_value(key, config)})"
