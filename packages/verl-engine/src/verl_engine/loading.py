"""Loads a Hugging Face model for packed training: no dropout, packed attention, every weight accounted for."""

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from verl_engine import attention
from verl_engine.config import EngineConfig, ModelConfig
from verl_engine.errors import ModelError

# Layers whose tokens look at each other only through attention, which keeps packed sequences apart.
_PACKABLE_LAYERS = frozenset({"full_attention", "sliding_attention"})

#: What transformers raises for a broken folder: a config.json may hold anything, and it computes before it checks.
MODEL_FAULTS = (
    StrictDataclassError,
    SafetensorError,
    OSError,
    ImportError,
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
)


def load_model(config: EngineConfig, attn_implementation: str = attention.PACKED) -> Any:
    """Return the transformers model of `config` on the CPU, in the storage dtype, with every dropout 0.

    ``head="value"`` gives the architecture's token-classification class with one label; where the folder has no such
    head, it starts at zero. Raises ModelError for a folder that is missing or damaged, an architecture that cannot
    train on packed sequences, and weights that the model lacks or the folder does not have.
    """
    import transformers

    attention.register()
    path, head = expand_home(config.model.path), config.head
    remote = config.model.trust_remote_code
    auto: Any = transformers.AutoModelForTokenClassification if head == "value" else transformers.AutoModelForCausalLM
    # A new head is drawn from the global generator before it is set to zero: give the generator back as it was.
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        try:
            hf_config = _load_config(path, config.model, head)
            if type(hf_config) not in auto._model_mapping and auto.__name__ not in getattr(hf_config, "auto_map", {}):
                raise ModelError(
                    f"transformers has no {auto.__name__} for the architecture {hf_config.model_type!r} of {path}, so "
                    f"it cannot be used as a model with a {head} head. Choose a model whose architecture has one "
                    "(Qwen2, Llama, Mistral, ...)."
                )
            model, report = auto.from_pretrained(
                path,
                config=hf_config,
                dtype=config.storage_dtype,
                attn_implementation=attn_implementation,
                trust_remote_code=remote,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # _check_weights names them, with both shapes
            )
        except MODEL_FAULTS as error:
            raise ModelError(
                f"The model {path} cannot be loaded: {one_line(error)} Give a Hugging Face folder with a "
                "valid config.json and whole safetensors weights."
            ) from error
    _check_packable(model, path)
    _check_weights(model, report, path, head)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def decoder_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the repeated blocks of a transformers model, which are sharded and recomputed one by one."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def _load_config(path: str, model: ModelConfig, head: str) -> Any:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(path, trust_remote_code=model.trust_remote_code)
    for key, value in model.override_config.items():
        if not hasattr(config, key):
            near = difflib.get_close_matches(key, config.to_dict(), n=1)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise ModelError(f"override_config sets {key}, which the configuration of {path} does not have{hint}")
        try:
            setattr(config, key, value)
        except MODEL_FAULTS as error:
            raise ModelError(
                f"override_config sets {key} to {value!r}, which the configuration of {path} refuses: "
                f"{one_line(error)} Give a value of the type that {key} has in config.json."
            ) from error
    # Old and new log-probs must come from the same function, so nothing is dropped at random.
    for key, value in config.to_dict().items():
        if "drop" in key and isinstance(value, int | float) and not isinstance(value, bool):
            setattr(config, key, 0.0)
    if head == "value":
        config.num_labels = 1
        config.classifier_dropout = 0.0
    return config


def _check_packable(model: Any, path: str) -> None:
    kinds = set(getattr(model.config, "layer_types", None) or ()) - _PACKABLE_LAYERS
    if kinds or not model._supports_attention_backend:
        what = f"layers of the kinds {', '.join(sorted(kinds))}" if kinds else "an attention that cannot be replaced"
        raise ModelError(
            f"{path} ({type(model).__name__}) has {what}; packed sequences would see each other. Use a model with "
            "full or sliding-window attention."
        )


def _check_weights(model: Any, report: dict[str, Any], path: str, head: str) -> None:
    for name, stored, expected in sorted(report["mismatched_keys"]):
        raise ModelError(
            f"The weights in {path} do not fit its config.json: {name} has shape {tuple(stored)}, the configuration "
            f"(head={head}) asks for {tuple(expected)}. Put back the config.json that belongs to these weights, and "
            "check override_config."
        )
    missing, unexpected = set(report["missing_keys"]), set(report["unexpected_keys"])
    if head == "value":
        score = getattr(model, "score", None)
        if not isinstance(score, torch.nn.Linear):
            raise ModelError(
                f"{type(model).__name__} (from {path}) has no linear layer `score`, so it cannot be a value model. "
                "Choose a model whose architecture has one (Qwen2, Llama, Mistral, ...)."
            )
        # FSDP2 warns about outputs that are views, and a linear layer with a bias returns one: (1, T, 1) is cheap to
        # copy.
        score.register_forward_hook(lambda _module, _inputs, output: output.clone())
        with torch.no_grad():
            for name, parameter in score.named_parameters(prefix="score"):
                if name in missing:
                    parameter.zero_()
                    missing.remove(name)
        # A language model becomes a value model: its vocabulary head is left behind, on purpose.
        unexpected = {name for name in unexpected if not name.startswith("lm_head.")}
    if missing or unexpected:
        lacks = f" It lacks {_some(missing)}." if missing else ""
        extra = f" It has {_some(unexpected)}, for which the model has no place." if unexpected else ""
        raise ModelError(
            f"The weights in {path} do not match {type(model).__name__} (head={head}).{lacks}{extra} Check that the "
            "folder is complete and of the right kind: a value model cannot be an actor."
        )


def _some(names: set[str]) -> str:
    first = sorted(names)[:3]
    return ", ".join(first) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def expand_home(path: str) -> str:
    """Return `path` with a leading ``~`` as the home folder; a hub name stays as it is."""
    return str(Path(path).expanduser()) if path.startswith("~") else path


def one_line(error: BaseException) -> str:
    """Return what `error` says on one line, ended by a full stop."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return (text if len(text) <= 400 else text[:400] + " ...").rstrip(".") + "."


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' loading report (`load_model` checks its content instead) and its progress bars."""
    import transformers

    logging: Any = transformers.utils.logging
    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()
