"""The frame of a page, the pieces that pages share, and writing it without touching what is somebody else's."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from verl_cli import __version__
from verl_cli.errors import UserError
from verl_cli.report.read import Run
from verl_cli.run.run_dir import write_atomically

# Stands near the top of every page: what does not hold it was not written by this program.
_MARKER = '<meta name="generator" content="verl-cli report">'
# A text of more characters or lines than the first is folded to the second.
_LONG_CHARACTERS, _SHORT_CHARACTERS = 600, 400
_LONG_LINES, _SHORT_LINES = 14, 8
# What would be invisible, or turn around the text beside it, gets a sign of its own: controls, bidirectional overrides.
_SIGNS = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: "\N{SYMBOL FOR DELETE}",
    **{code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))},
    **dict.fromkeys(range(55296, 57344), "�"),
}


def document(title: str, parts: Sequence[str]) -> str:
    """A whole page. Its policy lets it load nothing and run nothing, whatever a model wrote into it."""
    style = files("verl_cli.report").joinpath("style.css").read_text("utf-8")
    html = (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">{_MARKER}'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} - verl report</title><style>{style}</style></head>"
        f"<body><main><h1>{escape(title)}</h1>{''.join(parts)}<footer>verl-cli {escape(__version__)}</footer></main>"
        "</body></html>\n"
    )
    return html.translate(_SIGNS)


def is_ours(path: Path) -> bool:
    """Whether a file is a page that this program wrote."""
    try:
        with path.open("rb") as file:
            return _MARKER.encode() in file.read(1024)
    except OSError:
        return False


def write_page(path: Path, html: str) -> Path:
    """Write a page to a path that is free or holds an earlier page; the file is there whole or not at all.

    Raises:
        UserError: another file is there, or there is no folder for it.
    """
    if not path.parent.is_dir():
        raise UserError(f"There is no folder {path.parent} to write {path.name} to. Make it, or choose another place.")
    if path.exists() and not is_ours(path):
        raise UserError(
            f"{path} is not a page that verl-cli report wrote, and is not overwritten. Choose another name with "
            f"--output FILE.html, or move it away."
        )
    write_atomically(path, html)
    return path


def state(run: Run) -> str:
    """How far a run came, in a word or two."""
    if run.failure is not None:
        return "failed"
    return "finished" if run.summary else "not finished"


def notices(run: Run, name: str = "") -> str:
    """Paragraphs on a run that failed, is not over, or left files that cannot be read.

    `name` is what the page calls the run, where it shows several.
    """
    subject = f"Run {name}" if name else "The run"
    parts = []
    if (failure := run.failure) is not None:
        where = failure.where or f"after step {max(run.metrics, default=0)}"
        parts.append(
            f'<div class="notice bad"><p><strong>{escape(subject)} failed</strong> ({escape(where)}): '
            f"{escape(failure.what)}</p><details><summary>error.log</summary><pre>{escape(failure.log)}</pre></details>"
            "</div>"
        )
    elif not run.summary:
        done = f"it has logged {max(run.metrics)} steps" if run.metrics else "it has logged no step yet"
        parts.append(
            f'<p class="notice"><strong>{escape(subject)} has not finished:</strong> {done}. It is still running, or '
            f"was stopped.</p>"
        )
    parts += [f'<p class="notice bad">{escape(problem)}</p>' for problem in run.problems]
    return "".join(parts)


def text(content: str) -> str:
    """A text of a model or a data set, folded where it is long."""
    if not content.strip():
        return "<i>empty</i>"
    lines = content.splitlines()
    if len(content) <= _LONG_CHARACTERS and len(lines) <= _LONG_LINES:
        return f'<div class="text">{escape(content)}</div>'
    start = "\n".join(lines[:_SHORT_LINES])[:_SHORT_CHARACTERS].rstrip()
    return (
        f'<details class="fold"><summary><span class="text start">{escape(start)} ...</span>'
        f'<span class="more">all {len(content):,} characters</span></summary><div class="text">{escape(content)}</div>'
        "</details>"
    )


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, css: str = "") -> str:
    """A table of HTML cells; the first cell of a row is its header. Narrow windows show a row as a card."""
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = []
    for row in rows:
        cells = [f'<th scope="row">{row[0]}</th>']
        cells += [
            f'<td><span class="head" aria-hidden="true">{name}</span><div>{cell}</div></td>'
            for name, cell in zip(heads[1:], row[1:], strict=True)
        ]
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f'<table class="{css}"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'
