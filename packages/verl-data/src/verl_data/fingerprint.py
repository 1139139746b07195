"""What decides the batches of a loader, as plain values, and what changed between two of them."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from verl_data.prompts import to_native

Fingerprint = dict[str, Any]

#: What the first states did not hold, because it could not be set.
_ADDED: Fingerprint = {"weights": None, "entries": None, "order by": None, "order values": None}
#: Decide which rows come when, and how they become prompts: each is told by its name with both values.
_SETTINGS = (
    "batch size",
    "shuffle",
    "seed",
    "drop last",
    "training",
    "weights",
    "order by",
    "data.prompt_key",
    "data.reward_fn_key",
    "data.prompt_format",
    "data.truncation",
    "data.max_prompt_length",
)

_SWITCHES = "data.apply_chat_template_kwargs"


def as_text(value: Any) -> str:
    """Write what a template reads as text that is the same whenever the value is, in whatever order keys come."""
    return json.dumps(to_native(value), sort_keys=True, default=repr)


def state_problem(state: Any) -> str | None:
    """Return why `state` is not what a loader returned as its state; None if it may be."""
    if not isinstance(state, Mapping):
        return f"it is a {type(state).__name__}"
    if missing := [name for name in ("epoch", "position", "truncated", "fingerprint") if name not in state]:
        return f"it lacks {', '.join(missing)}"
    for name in ("epoch", "position", "truncated"):
        value = state[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            return f"{name} is {value!r:.40}, not a number from 0"
    found = state["fingerprint"]
    if not isinstance(found, Mapping) or "files" not in found or "rows sha256" not in found:
        return "its fingerprint names no data"
    return None


def changes(before: Mapping[str, Any], now: Fingerprint) -> Iterator[str]:
    """Yield what differs, one clause each, so that batches would not be the same."""
    before = {**now, **_ADDED, **before}  # what an older state does not hold is taken to be as it is now
    old, new = before["files"], now["files"]
    if len(old) != len(new):
        yield f"{len(old)} files ({', '.join(file['name'] for file in old)}) became {len(new)}"
    for was, is_ in zip(old, new, strict=False):
        if was["sha256"] != is_["sha256"]:
            rows = f"{was['rows']} rows became {is_['rows']}" if was["rows"] != is_["rows"] else "its content changed"
            name = was["name"] if was["name"] == is_["name"] else f"{was['name']} was replaced by {is_['name']}"
            yield f"{name}: {rows}"
    for setting in _SETTINGS:
        if before[setting] != now[setting]:
            yield f"{setting} {before[setting]} became {now[setting]}"
    if before["data.prompt_format"] == now["data.prompt_format"]:
        if before[_SWITCHES] != now[_SWITCHES]:
            yield f"{_SWITCHES} {before[_SWITCHES]} became {now[_SWITCHES]}"
        if before["chat template"] != now["chat template"]:
            yield "the tokenizer has another chat template"
    if [file["sha256"] for file in old] != [file["sha256"] for file in new]:
        return  # which also changes everything below
    if before["entries"] != now["entries"] and before["weights"] == now["weights"]:
        yield f"the files are {before['entries']} and {now['entries']} to an entry of data.train_files, before and now"
    if before["rows sha256"] != now["rows sha256"]:
        yield (
            f"the rows in use, {before['rows']} before and {now['rows']} now, are others (maximum of samples, or "
            "filter of over-long prompts)"
        )
    elif before["order by"] == now["order by"] and before["order values"] != now["order values"]:
        yield f"data.order_by={now['order by']} puts the same rows in another order"
