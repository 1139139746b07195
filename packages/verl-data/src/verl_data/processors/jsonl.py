"""Rows of your own with columns of any name: JSONL, JSON, CSV or Parquet to RL, SFT or preference rows.

python -m verl_data.processors.jsonl IN OUT.parquet --data_source me/faq --prompt question --answer answer      # RL
python -m verl_data.processors.jsonl IN OUT.parquet --prompt question --response answer                         # SFT
python -m verl_data.processors.jsonl IN OUT.parquet --messages conversation                          # multi-turn SFT
python -m verl_data.processors.jsonl IN OUT.parquet --prompt question --chosen good --rejected bad      # preferences

IN is a path, a glob or an fsspec URL. Columns that are not named go to extra_info; images, videos, audios, tools,
tools_kwargs and agent_name stay columns. A file per split: give --split for what is not train.
"""

import re
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from verl_data.errors import DataError
from verl_data.processor import DataProcessor
from verl_data.processors.raw import column, text
from verl_data.processors.splits import OnError
from verl_data.rows import Row
from verl_data.schema.fields import OPTIONAL_COLUMNS, kind, messages_problem

_PLACE = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")


@dataclass(frozen=True, kw_only=True)
class ColumnMapping:
    """Which columns of raw rows make a training row; what is given decides what the row is for."""

    prompt: str | None = None
    """Column with the question: text, or a list of messages."""
    template: str | None = None
    """Text of the question instead, in which {NAME} stands for a column; {{ and }} are braces."""
    system: str | None = None
    """Text of a system message before the prompt."""
    answer: str | None = None
    """RL: column with the ground truth."""
    data_source: str | None = None
    """RL: text that chooses the reward."""
    ability: str | None = None
    """RL: text for the column ability."""
    response: str | None = None
    """SFT: column with the answer to imitate."""
    messages: str | None = None
    """Multi-turn SFT: column with whole conversations."""
    chosen: str | None = None
    """Preferences: column with the better answer."""
    rejected: str | None = None
    """Preferences: column with the worse answer."""
    split: str = "train"
    """What extra_info.split says."""

    def __post_init__(self) -> None:
        """Raise ValueError for columns that make no row."""
        answers = [name for name in ("answer", "response", "messages", "chosen") if getattr(self, name)]
        if len(answers) != 1:
            found = " and ".join(f"--{name}" for name in answers) or "none"
            raise ValueError(
                "Name the column that answers, and with it what the rows are for: --answer (RL), --response (SFT), "
                f"--messages (multi-turn SFT), or --chosen and --rejected (preferences). Given: {found}."
            )
        if bool(self.chosen) != bool(self.rejected):
            raise ValueError("Preferences need both --chosen and --rejected.")
        if bool(self.answer) != bool(self.data_source):
            raise ValueError("RL rows need both --answer and --data_source, a name of yours that chooses the reward.")
        if self.ability and not self.answer:
            raise ValueError("--ability is for RL rows, which have --answer.")
        asked = [name for name in ("prompt", "template") if getattr(self, name)]
        if len(asked) + bool(self.messages) != 1:
            raise ValueError("Give --prompt COLUMN or --template TEXT, one of them; with --messages neither.")

    @property
    def used(self) -> set[str]:
        """The columns that are part of the row, and therefore not of its extra_info."""
        names = {self.prompt, self.answer, self.response, self.messages, self.chosen, self.rejected}
        return {name for name in names if name is not None}


class JsonlProcessor(DataProcessor):
    """Turns rows with columns of any name into training rows."""

    def __init__(self, mapping: ColumnMapping, *, on_error: OnError = "raise") -> None:
        """Read the columns that `mapping` names."""
        super().__init__(on_error=on_error)
        self._mapping = mapping

    def process_row(self, row: Row, index: int) -> Row:
        """Return the row; DataError naming the column that is missing or holds something else."""
        mapping = self._mapping
        kept = {name: row[name] for name in OPTIONAL_COLUMNS if name in row and name not in mapping.used}
        rest = {name: value for name, value in row.items() if name not in mapping.used | set(kept)}
        own = rest.pop("extra_info", None)
        if own is not None and not isinstance(own, dict):
            raise DataError(f"column 'extra_info': a dict is expected, not {kind(own)}")
        return {
            **self._main(row),
            **kept,
            "extra_info": {"split": mapping.split, "index": index, **rest, **(own or {})},
        }

    def _main(self, row: Row) -> Row:
        mapping = self._mapping
        if mapping.messages:
            return {"messages": self._behind_system(_messages(row, mapping.messages))}
        prompt = self._prompt(row)
        if mapping.response:
            return {"prompt": prompt, "response": text(row, mapping.response)}
        if mapping.chosen and mapping.rejected:
            return {
                "prompt": prompt,
                "chosen": _answer(row, mapping.chosen),
                "rejected": _answer(row, mapping.rejected),
            }
        assert mapping.answer is not None  # checked when the mapping was made
        truth = column(row, mapping.answer)
        if truth is None or truth == "":
            raise DataError(f"column {mapping.answer!r}: an answer is expected, not {kind(truth)}")
        ability = {"ability": mapping.ability} if mapping.ability else {}
        return {
            "data_source": mapping.data_source,
            "prompt": prompt,
            **ability,
            "reward_model": {"style": "rule", "ground_truth": truth},
        }

    def _prompt(self, row: Row) -> list[Row]:
        if self._mapping.template:
            question = fill(self._mapping.template, row)
        else:
            assert self._mapping.prompt is not None  # checked when the mapping was made
            if isinstance(column(row, self._mapping.prompt), list):
                return self._behind_system(_messages(row, self._mapping.prompt))
            question = text(row, self._mapping.prompt)
        return self._behind_system([{"role": "user", "content": question}])

    def _behind_system(self, messages: list[Row]) -> list[Row]:
        if self._mapping.system is None:
            return messages
        if messages[0]["role"] == "system":
            raise DataError("the messages begin with a system message already; leave --system out")
        return [{"role": "system", "content": self._mapping.system}, *messages]


def fill(template: str, row: Row) -> str:
    """Put columns into a template: {NAME} is a column, {{ and }} are braces; DataError for a column that is missing."""

    def place(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0][0]
        try:
            value = column(row, found[1])
        except DataError as error:
            raise DataError(f"{error}. For braces in the text of a template write {{{{ and }}}}") from error
        if value is None or isinstance(value, (list, dict)):
            raise DataError(f"column {found[1]!r}: text or a number is expected, not {kind(value)}")
        return str(value)

    return _PLACE.sub(place, template)


def _messages(row: Row, name: str) -> list[Row]:
    value = column(row, name)
    if (problem := messages_problem(value)) is not None:
        raise DataError(f"column {name!r}{problem}")
    return list(value)


def _answer(row: Row, name: str) -> Any:
    return _messages(row, name) if isinstance(column(row, name), list) else text(row, name)


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command; return the exit status."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("input", metavar="IN", nargs="+", help="JSONL, JSON, CSV or Parquet files")
    parser.add_argument("output", metavar="OUT", help="Parquet file or fsspec URL")
    parser.add_argument("--prompt", metavar="COLUMN", help="the question: text or messages")
    parser.add_argument("--template", metavar="TEXT", help="the question with {COLUMN} in it, instead of --prompt")
    parser.add_argument("--system", metavar="TEXT", help="a system message before the prompt")
    parser.add_argument("--answer", metavar="COLUMN", help="RL: the ground truth")
    parser.add_argument("--data_source", metavar="NAME", help="RL: chooses the reward, for example me/faq")
    parser.add_argument("--ability", metavar="NAME", help="RL: for the column ability, for example math")
    parser.add_argument("--response", metavar="COLUMN", help="SFT: the answer to imitate")
    parser.add_argument("--messages", metavar="COLUMN", help="multi-turn SFT: whole conversations")
    parser.add_argument("--chosen", metavar="COLUMN", help="preferences: the better answer")
    parser.add_argument("--rejected", metavar="COLUMN", help="preferences: the worse answer")
    parser.add_argument("--split", default="train", metavar="NAME", help="for extra_info.split (default train)")
    parser.add_argument("--on_error", choices=("raise", "skip"), default="raise", help="stop at a bad row, or count it")
    parser.add_argument("--num_workers", type=int, default=1, metavar="N", help="processes (default 1)")
    arguments = parser.parse_args(argv)
    try:
        mapping = ColumnMapping(**{field.name: getattr(arguments, field.name) for field in fields(ColumnMapping)})
        processor = JsonlProcessor(mapping, on_error=arguments.on_error)
        print(processor.run(arguments.input, arguments.output, num_workers=arguments.num_workers))
    except (ValueError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
