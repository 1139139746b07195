"""What a row for RL training must hold.

========================  ==============================================================================================
data_source               text that chooses the reward rule
prompt                    list of messages {role, content}; text where data.prompt_format is rendered
reward_model              {style, ground_truth}; without a ground truth only where the style is not rule. The truth is
                          what JSON holds: text, numbers, booleans, lists and dicts of them
extra_info                optional dict: split, index, and what a reward needs
any other                 passed through: ability, tools (schemas for the chat template), images, ...
========================  ==============================================================================================
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from verl_data.config import DataConfig
from verl_data.errors import DataError

#: Version of the row layout above, written into manifests.
SCHEMA_VERSION = 1

#: What to do about a missing column: the name of two of them can be configured, that of the third cannot.
_RENAMED = "If such a column has another name, set {keys}"
_NO_REWARD = (
    "reward_model, under this very name, is a dict {style: rule, ground_truth: the answer}, which the reward function "
    "gets"
)
_PROCESS = "A verl_data.DataProcessor turns raw rows into training rows"


def row_columns(config: DataConfig) -> tuple[str, ...]:
    """The columns that `rl_row_problems` looks at."""
    return config.reward_fn_key, config.prompt_key, "reward_model", "extra_info", "tools"


def rl_row_problems(row: Mapping[str, Any], config: DataConfig) -> list[str]:
    """Return what is wrong with a row, one sentence per field, each naming the field; empty if it is sound."""
    source, prompt = config.reward_fn_key, config.prompt_key
    missing = [name for name in (source, prompt, "reward_model") if name not in row]
    if missing:
        has = ", ".join(row) or "no columns"
        keys = {source: "data.reward_fn_key", prompt: "data.prompt_key"}
        renamed = " and ".join(keys[name] for name in missing if name in keys)
        remedies = [_RENAMED.format(keys=renamed)] * bool(renamed) + [_NO_REWARD] * ("reward_model" in missing)
        return [f"lacks {', '.join(missing)}; it has {has}. {'. '.join([*remedies, _PROCESS])}"]
    problems = []
    if not isinstance(row[source], str) or not row[source]:
        problems.append(f"field {source}: text is expected, not {_kind(row[source])}")
    if (problem := _prompt_problem(row[prompt], config)) is not None:
        problems.append(f"field {prompt}{problem}")
    reward = row["reward_model"]
    if isinstance(reward, Mapping) and "ground_truth" not in reward:
        problems.append(f"field reward_model: it lacks ground_truth; it has {', '.join(map(str, reward)) or 'nothing'}")
    elif not isinstance(reward, Mapping):
        problems.append(f"field reward_model: a dict with style and ground_truth is expected, not {_kind(reward)}")
    elif reward["ground_truth"] is None and reward.get("style", "rule") == "rule":
        problems.append("field reward_model.ground_truth: it is empty, but a rule needs an answer to compare with")
    else:
        problems += _json_problems("reward_model.ground_truth", reward["ground_truth"])
    if not isinstance(row.get("extra_info", {}), (Mapping, type(None))):
        problems.append(f"field extra_info: a dict is expected, not {_kind(row['extra_info'])}")
    problems += _tools_problems(row)
    for name in (source, prompt, "tools"):
        problems += _text_problems(name, row.get(name))
    return problems


def prompt_row_problems(row: Mapping[str, Any], config: DataConfig) -> list[str]:
    """Return what is wrong with a row that is to be answered but not scored: of `rl_row_problems` only what is about
    the prompt and its tools.
    """
    prompt = config.prompt_key
    if prompt not in row:
        has = ", ".join(row) or "no columns"
        return [f"lacks {prompt}; it has {has}. Name the column that holds the prompts with data.prompt_key"]
    problems = []
    if (problem := _prompt_problem(row[prompt], config)) is not None:
        problems.append(f"field {prompt}{problem}")
    problems += _tools_problems(row)
    for name in (prompt, "tools"):
        problems += _text_problems(name, row.get(name))
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
            else (f": finished text is expected because data.prompt_format is rendered, not {_kind(prompt)}")
        )
    if isinstance(prompt, str):
        return (
            ": a list of messages is expected, not text. Write it as [{role: user, content: ...}]; or, if it is "
            "finished text with all special tokens, set data.prompt_format=rendered"
        )
    if not isinstance(prompt, list) or not prompt:
        return f": a list of messages is expected, not {_kind(prompt)}"
    for number, message in enumerate(prompt):
        if not isinstance(message, Mapping):
            return f"[{number}]: a message {{role, content}} is expected, not {_kind(message)}"
        if not isinstance(message.get("role"), str):
            return f"[{number}].role: text is expected, not {_kind(message.get('role'))}"
        content = message.get("content")
        parts = isinstance(content, list) and all(isinstance(part, Mapping) for part in content)
        if not isinstance(content, str) and not parts and not (content is None and message.get("tool_calls")):
            return f"[{number}].content: text is expected, not {_kind(content)}"
    return None


def _tools_problems(row: Mapping[str, Any]) -> list[str]:
    tools = row.get("tools")
    if tools is None or (isinstance(tools, list) and all(isinstance(tool, Mapping) for tool in tools)):
        return []
    return [f"field tools: a list of tool schemas (dicts) is expected, not {_kind(tools)}"]


def _json_problems(path: str, value: Any) -> list[str]:
    for place, leaf in _leaves(path, value):
        if not isinstance(leaf, (str, bool, int, float, type(None))):
            return [f"field {place} is a {type(leaf).__name__}, which JSON cannot hold; store it as text"]
    return _text_problems(path, value)


def _text_problems(path: str, value: Any) -> list[str]:
    for place, leaf in _leaves(path, value):
        if isinstance(leaf, str) and not leaf.isascii():
            try:
                leaf.encode()
            except UnicodeEncodeError as error:
                half = f"U+{ord(leaf[error.start]):04X}, character {error.start}"
                return [f"field {place} holds half of a surrogate pair ({half}), which UTF-8 cannot hold; remove it"]
    return []


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values in `value` that are no list or dict, and the keys, each with where it is."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield f"{path} (a key)", key
            yield from _leaves(f"{path}.{key!s}", entry)
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _leaves(f"{path}[{index}]", entry)
    else:
        yield path, value


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, (str, list, Mapping)) and not value:
        return f"an empty {'text' if isinstance(value, str) else 'list' if isinstance(value, list) else 'dict'}"
    return f"{type(value).__name__} {value!r:.60}"
