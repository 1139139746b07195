"""Loads a Hugging Face language model for generation: every weight accounted for, every fault one kind of error."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from verl_rollout.config import DTYPES
from verl_rollout.errors import ModelNotFoundError, RolloutError


def load_model(
    path: str | Path,
    device: torch.device,
    dtype: torch.dtype,
    trust_remote_code: bool,
    override_config: Mapping[str, Any],
) -> Any:
    """Return the transformers model of a folder (``~`` is expanded) or hub name, on `device`, frozen and in eval mode.

    Raises:
        RolloutError: if the folder is missing (`ModelNotFoundError`) or damaged, its weights do not fit its
            configuration, or the configuration refuses a value of `override_config`.
    """
    # Imported here because it takes seconds, which whoever only needs the protocol should not wait for.
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = Path(path).expanduser()
    if not folder.is_dir() and (str(path).startswith(("/", ".", "~")) or str(path).count("/") > 1):
        raise ModelNotFoundError(
            f"There is no model folder {path}. Give a Hugging Face folder (config.json and *.safetensors), or the "
            f"name of a model on the hub."
        )
    name = str(folder) if folder.is_dir() else str(path)
    # A config.json may hold anything, and transformers computes with it before checking it.
    faults = (
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
    try:
        config: Any = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
    except faults as error:
        raise _cannot_load(path, error) from error
    for key, value in override_config.items():
        if not hasattr(config, key):
            raise RolloutError(f"override_config sets {key}, which the configuration of {path} does not have.")
        try:
            setattr(config, key, value)
        except faults as error:
            raise RolloutError(
                f"override_config sets {key} to {value!r}, which the configuration of {path} refuses: "
                f"{_one_line(error)} Give a value of the type that {key} has in config.json."
            ) from error
    auto: Any = AutoModelForCausalLM  # its annotations do not know output_loading_info
    try:
        model, report = auto.from_pretrained(
            name,
            config=config,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, with name and shapes
        )
        _check_weights(report, path)
        return model.to(device).eval().requires_grad_(False)
    except RolloutError:
        raise
    except faults as error:
        raise _cannot_load(path, error) from error


def parse_dtype(name: str | None, device: torch.device) -> torch.dtype:
    """Return the dtype called `name`; None takes bfloat16 on an accelerator and float32 on a CPU."""
    if name is None:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in DTYPES:
        raise RolloutError(
            f"There is no rollout dtype {name!r}; choose one of {', '.join(DTYPES)}, or none for the default."
        )
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def parse_device(name: str) -> torch.device:
    """Return the torch device called `name`, which must exist on this machine."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise RolloutError(f"There is no torch device {name!r}; use cpu, cuda or cuda:<index>.") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise RolloutError(
            f"The rollout was asked to run on {name}, but torch finds {torch.cuda.device_count()} usable GPUs here. "
            f"Set trainer.device=cpu, or use a machine whose GPU and driver this torch build supports."
        )
    return device


def _check_weights(report: Mapping[str, Any], path: str | Path) -> None:
    for name, stored, expected in sorted(report["mismatched_keys"]):
        raise RolloutError(
            f"The weights in {path} do not fit its config.json: {name} has shape {tuple(stored)}, the configuration "
            f"asks for {tuple(expected)}. Put back the config.json that belongs to these weights, and check "
            f"override_config."
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise RolloutError(
            f"The weights in {path} lack {missing[0]} (and {len(missing) - 1} others), so the model would generate "
            f"with random ones. Check that the folder is complete and holds a language model."
        )


def _cannot_load(path: str | Path, error: Exception) -> RolloutError:
    return RolloutError(
        f"The model {path} cannot be loaded: {_one_line(error)} Give a Hugging Face folder with a valid config.json "
        f"and complete safetensors weights."
    )


def _one_line(error: Exception) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return (text if len(text) <= 400 else text[:400] + " ...").rstrip(".") + "."
