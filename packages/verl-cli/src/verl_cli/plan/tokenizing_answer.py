"""What transformers says of tokenizers, model configurations and prompts."""

from typing import Any

from verl_data import DataConfig, DataError, truncate
from verl_data.prompts import prompts_of_rows
from verl_engine.config import ModelConfig

from verl_cli.errors import UserError
from verl_cli.plan.tokenizing import Answer, Question, ShownPrompt
from verl_cli.tokenizer import open_tokenizer

#: What of a configuration is asked for, under the names that transformers gives it in every architecture.
_VALUES = (
    "model_type",
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "max_position_embeddings",
)


def answer(question: Question) -> Answer:
    """Answer everything that can be answered; what cannot is a problem."""
    found = Answer()
    for key, model in question.models.items():
        _read_config(found, key, model)
    if question.tokenizer is None:
        return found
    try:
        tokenizer = open_tokenizer(question.tokenizer, trust_remote_code=question.trust_remote_code)
        if question.same_vocabulary is not None:
            from verl_cli.models import check_same_vocabulary

            check_same_vocabulary(*question.same_vocabulary)
    except UserError as error:
        found.problems.append(str(error))
        return found
    found.vocabulary = len(tokenizer)
    _render(found, tokenizer, question.rows, question.data)
    return found


def _read_config(found: Answer, key: str, model: ModelConfig) -> None:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    # A config.json may hold anything, and transformers computes with it before checking it.
    faults = (StrictDataclassError, OSError, ImportError, ValueError, TypeError, AttributeError, LookupError)
    try:
        config: Any = AutoConfig.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
    except faults as error:
        found.problems.append(
            f"The model {model.path} ({key}) cannot be loaded: {_one_line(error)} Give a Hugging Face folder with a "
            "valid config.json and whole safetensors weights."
        )
        return
    for name, value in model.override_config.items():
        section = key.rpartition(".")[0]
        if not hasattr(config, name):
            found.problems.append(
                f"{section}.override_config sets {name}, which the configuration of {model.path} does not have. "
                f"Correct the name, or leave it out."
            )
            continue
        try:
            setattr(config, name, value)
        except faults as error:
            found.problems.append(
                f"{section}.override_config sets {name} to {value!r}, which the configuration of {model.path} "
                f"refuses: {_one_line(error)} Give a value of the type that {name} has in config.json."
            )
    text = config.get_text_config()
    found.models[key] = {name: getattr(text, name, None) for name in _VALUES}


def _render(found: Answer, tokenizer: Any, rows: list[dict[str, Any]], data: DataConfig) -> None:
    for position, row in enumerate(rows):
        try:
            (ids,) = prompts_of_rows(tokenizer, [row], data)
        except DataError as error:
            found.lengths.append(None)
            found.refusals[position] = str(error)
            continue
        found.lengths.append(len(ids))
        fits = len(ids) <= data.max_prompt_length
        if found.shown is None and (fits or not (data.filter_overlong_prompts or data.truncation == "error")):
            used = ids if fits else truncate(ids, data.max_prompt_length, data.truncation)
            found.shown = ShownPrompt(position, len(used), not fits, tokenizer.decode(used))


def _one_line(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return (text if len(text) <= 400 else text[:400] + " ...").rstrip(".") + "."
