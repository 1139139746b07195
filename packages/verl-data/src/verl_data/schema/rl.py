"""What a row for RL training must hold.

========================  ==============================================================================================
data_source               text that chooses the reward rule
prompt                    list of messages {role, content}; text where data.prompt_format is rendered
reward_model              {style, ground_truth}; without a ground truth only where the style is not rule. The truth is
                          what JSON holds: text, numbers, booleans, lists and dicts of them
extra_info                optional dict: split, index, and what a reward needs
images, videos, audios    optional lists
agent_name                optional text
tools_kwargs              optional dict by tool name
tools                     optional list of tool schemas, for the chat template
any other                 passed through: ability, ...
========================  ==============================================================================================
"""

from collections.abc import Collection, Mapping
from typing import Any

from verl_data.config import DataConfig
from verl_data.errors import DataError
from verl_data.schema.fields import (
    DICT,
    OPTIONAL_COLUMNS,
    PROCESS,
    is_utf8,
    json_problems,
    kind,
    messages_problem,
    optional_problems,
    text_problems,
)

#: What to do about a missing column: the name of two of them can be configured, that of the third cannot.
_RENAMED = "If such a column has another name, set {keys}"
_NO_REWARD = (
    "reward_model, under this very name, is a dict {style: rule, ground_truth: the answer}, which the reward function "
    "gets"
)


def row_columns(config: DataConfig) -> tuple[str, ...]:
    """The columns that `rl_row_problems` looks at."""
    return config.reward_fn_key, config.prompt_key, "reward_model", "extra_info", *OPTIONAL_COLUMNS


def rl_row_problems(row: Mapping[str, Any], config: DataConfig) -> list[str]:
    """Return what is wrong with a row, one sentence per field, each naming the field; empty if it is sound."""
    source, prompt = config.reward_fn_key, config.prompt_key
    if source not in row or prompt not in row or "reward_model" not in row:
        missing = [name for name in (source, prompt, "reward_model") if name not in row]
        has = ", ".join(row) or "no columns"
        keys = {source: "data.reward_fn_key", prompt: "data.prompt_key"}
        renamed = " and ".join(keys[name] for name in missing if name in keys)
        remedies = [_RENAMED.format(keys=renamed)] * bool(renamed) + [_NO_REWARD] * ("reward_model" in missing)
        return [f"lacks {', '.join(missing)}; it has {has}. {'. '.join([*remedies, PROCESS])}"]
    problems = []
    if not isinstance(row[source], str) or not row[source]:
        problems.append(f"field {source}: text is expected, not {kind(row[source])}")
    if (problem := _prompt_problem(row[prompt], config)) is not None:
        problems.append(f"field {prompt}{problem}")
    reward = row["reward_model"]
    if not isinstance(reward, DICT):
        problems.append(f"field reward_model: a dict with style and ground_truth is expected, not {kind(reward)}")
    elif "ground_truth" not in reward:
        problems.append(f"field reward_model: it lacks ground_truth; it has {', '.join(map(str, reward)) or 'nothing'}")
    elif reward["ground_truth"] is None and reward.get("style", "rule") == "rule":
        problems.append("field reward_model.ground_truth: it is empty, but a rule needs an answer to compare with")
    elif not isinstance(style := reward.get("style"), (str, type(None))):
        problems.append(f"field reward_model.style: text is expected, such as rule, not {kind(style)}")
    else:
        problems += json_problems("reward_model.ground_truth", reward["ground_truth"])
    if not isinstance(row.get("extra_info"), (*DICT, type(None))):
        problems.append(f"field extra_info: a dict is expected, not {kind(row['extra_info'])}")
    problems += optional_problems(row)
    if not is_utf8([row[source], row[prompt], row.get("tools")]):  # one walk for almost every row
        for name in (source, prompt, "tools"):
            problems += text_problems(name, row.get(name))
    return problems


def prompt_row_problems(row: Mapping[str, Any], config: DataConfig) -> list[str]:
    """Return what is wrong with a row that is to be answered but not scored: of `rl_row_problems` only what is about
    the prompt and the columns that any row may have.
    """
    prompt = config.prompt_key
    if prompt not in row:
        has = ", ".join(row) or "no columns"
        return [f"lacks {prompt}; it has {has}. Name the column that holds the prompts with data.prompt_key"]
    problems = []
    if (problem := _prompt_problem(row[prompt], config)) is not None:
        problems.append(f"field {prompt}{problem}")
    problems += optional_problems(row)
    for name in (prompt, "tools"):
        problems += text_problems(name, row.get(name))
    return problems


def require_known_data_sources(first_seen: Mapping[str, str], known: Collection[str], register: str) -> None:
    """Raise DataError if a data source has no reward rule.

    Args:
        first_seen: data source -> where it was met first, as `PromptLoader.data_sources` gives it.
        known: the data sources that have a rule.
        register: what to do to add a rule, as a sentence.
    """
    for source, location in first_seen.items():
        if source not in known:
            raise DataError(
                f"{location}: there is no reward rule for data_source {source!r}. Known are "
                f"{', '.join(sorted(known))}. {register}"
            )


def _prompt_problem(prompt: Any, config: DataConfig) -> str | None:
    if config.prompt_format == "rendered":
        return (
            None
            if isinstance(prompt, str) and prompt
            else (f": finished text is expected because data.prompt_format is rendered, not {kind(prompt)}")
        )
    if isinstance(prompt, str):
        return (
            ": a list of messages is expected, not text. Write it as [{role: user, content: ...}]; or, if it is "
            "finished text with all special tokens, set data.prompt_format=rendered"
        )
    return messages_problem(prompt)
