"""What decides the batches of a loader, as plain values, and what changed between two of them."""

from collections.abc import Iterator, Mapping
from typing import Any

Fingerprint = dict[str, Any]

#: What the first states did not hold, because it could not be set.
_ADDED: Fingerprint = {"weights": None, "entries": None, "order by": None, "order values": None}


def changes(before: Mapping[str, Any], now: Fingerprint) -> Iterator[str]:
    """Yield what differs, one clause each, so that batches would not be the same."""
    before = {**_ADDED, "drop last": now["drop last"], **before}
    old, new = before["files"], now["files"]
    if len(old) != len(new):
        yield f"{len(old)} files ({', '.join(file['name'] for file in old)}) became {len(new)}"
    for was, is_ in zip(old, new, strict=False):
        if was["sha256"] != is_["sha256"]:
            rows = f"{was['rows']} rows became {is_['rows']}" if was["rows"] != is_["rows"] else "its content changed"
            name = was["name"] if was["name"] == is_["name"] else f"{was['name']} was replaced by {is_['name']}"
            yield f"{name}: {rows}"
    for setting in ("batch size", "shuffle", "seed", "drop last", "weights", "order by"):
        if before[setting] != now[setting]:
            yield f"{setting} {before[setting]} became {now[setting]}"
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
        yield f"data.order_by={now['order by']} gives the same rows other numbers"
