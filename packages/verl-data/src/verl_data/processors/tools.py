"""Columns of rows whose episodes may call tools."""

from typing import Any

from verl_data.rows import Row


def with_tool(row: Row, tool: str, **create_kwargs: Any) -> Row:
    """Return an RL row whose extra_info says that `tool` is created, for every episode, with `create_kwargs`."""
    extra = {**(row.get("extra_info") or {}), "need_tools_kwargs": True}
    extra["tools_kwargs"] = {tool: {"create_kwargs": create_kwargs}}
    return {**row, "extra_info": extra}
