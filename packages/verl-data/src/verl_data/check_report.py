"""What a check of training data found, as values and as text for people."""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from verl_data.schema import SchemaName
from verl_data.terminal import visible

#: What differs between rows with the same fault: numbers, and what stands in brackets or quotation marks.
_PARTICULARS = re.compile(r"\(.*?\)|'.*?'|\d+")
#: Rows that are named of each finding.
_PLACES = 3


@dataclass
class Finding:
    """One thing that is wrong or doubtful, and where."""

    text: str
    """What it is, as the first row says it: the field, what is wrong, what to do."""
    rows: int = 0
    """How many rows (or for what is no row's, files) it was found in."""
    places: list[str] = field(default_factory=list)
    """The first few: file, row (from 0) and, where the file has lines, line (from 1)."""

    def __str__(self) -> str:
        """A few lines for people."""
        more = self.rows - len(self.places)
        places = "; ".join(visible(place, keep="") for place in self.places)
        return f"{visible(self.text, keep='')}.\n    {places}{f'; and {more:,} more' * bool(more)}"


class Findings:
    """Collects findings: rows with the same fault are one, and there are never more than a given number of kinds."""

    def __init__(self, most: int) -> None:
        """Keep the first `most` kinds; count the others together."""
        self._most = most
        self._by_kind: dict[str, Finding] = {}
        self.unlisted = 0
        """What was found beyond these kinds."""

    def add(self, place: str, text: str, rows: int = 1) -> None:
        """Note that `rows` rows have the fault `text`, the first at `place`; "" is not named."""
        kind = _PARTICULARS.sub("", text.split(", not ")[0])
        found = self._by_kind.get(kind)
        if found is None:
            if len(self._by_kind) >= self._most:
                self.unlisted += rows
                return
            found = self._by_kind[kind] = Finding(text.rstrip("."))
        found.rows += rows
        if place and len(found.places) < _PLACES:
            found.places.append(place)

    def list(self) -> list[Finding]:
        """Return what was found, in the order of first appearance."""
        return list(self._by_kind.values())


@dataclass(frozen=True)
class CheckedFile:
    """One file, and what it holds."""

    name: str
    schema: SchemaName | None
    """What its rows are for; None where it could not be read or recognised."""
    recognised: bool
    """Whether the schema was recognised from the columns, rather than named by the caller."""
    rows: int
    """Those that were read."""
    faulty_rows: int


@dataclass(frozen=True)
class TokenLengths:
    """Lengths in tokens of everything that was rendered."""

    rows: int
    shortest: int
    median: int
    longest: int
    limit: int | None
    """data.max_prompt_length; None for rows that it does not concern."""
    over: int
    """Rows over the limit."""


@dataclass(frozen=True)
class CheckReport:
    """What `check_file` found. As text it is for people; `to_dict` gives what JSON holds."""

    files: list[CheckedFile]
    problems: list[Finding]
    """What keeps the files from being used."""
    unlisted_problems: int
    """Problems of further kinds, which are only counted."""
    warnings: list[Finding]
    """What is allowed, and yet makes for bad training."""
    unlisted_warnings: int
    data_sources: dict[str, int]
    """Rows of each data source, most first; of RL rows only."""
    lengths: TokenLengths | None
    """None without a tokenizer, or where nothing could be rendered."""

    @property
    def ok(self) -> bool:
        """Whether the files can be used."""
        return self.problem_count == 0

    @property
    def rows(self) -> int:
        """The rows that were read."""
        return sum(file.rows for file in self.files)

    @property
    def problem_count(self) -> int:
        """How many problems there are; a row can have several."""
        return sum(finding.rows for finding in self.problems) + self.unlisted_problems

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {"ok": self.ok, "rows": self.rows, "problem_count": self.problem_count, **asdict(self)}

    def __str__(self) -> str:
        """The report for people."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for file in self.files:
            how = "recognised from its columns" if file.recognised else "as asked for"
            schema = f"{file.schema} rows ({how})" if file.schema else "of no schema"
            faulty = f"; {file.faulty_rows:,} of them faulty" if file.faulty_rows else ""
            held = f"{file.rows:,} {schema}{faulty}" if file.schema else "not checked"
            yield f"{visible(file.name, keep='')}: {held}"
        if self.data_sources:
            counts = ", ".join(f"{visible(name, keep='')} {rows:,}" for name, rows in self.data_sources.items())
            yield f"data sources: {counts}"
        if (found := self.lengths) is not None:
            limit = "" if found.limit is None else f"; {found.over:,} over data.max_prompt_length={found.limit}"
            yield (
                f"tokens of {found.rows:,} rendered rows: shortest {found.shortest:,}, median {found.median:,}, "
                f"longest {found.longest:,}{limit}"
            )
        for name, findings, unlisted in (
            ("warning", self.warnings, self.unlisted_warnings),
            ("problem", self.problems, self.unlisted_problems),
        ):
            count = sum(finding.rows for finding in findings) + unlisted
            if count:
                yield f"{count:,} {name}{'s' * (count > 1)}:"
                yield from (f"  {finding}" for finding in findings)
            if unlisted:
                yield f"  and {unlisted:,} of other kinds"
        if self.ok:
            yield "no problems"
