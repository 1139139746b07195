"""The page that compares runs, and `verl-cli report`: what it tells apart, what it compares, what it overwrites."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner
from verl_cli.errors import UserError
from verl_cli.main import app
from verl_cli.report import read_runs, write_comparison
from verl_cli.report.compare import differences, labels, tag

STEP = {
    "critic/score/mean": 0.5,
    "actor/entropy": 1.5,
    "perf/throughput": 100.0,
    "perf/total_num_tokens": 400.0,
    "timing_s/gen": 2.0,
    "timing_s/step": 4.0,
}


def write_run(
    folder: Path,
    steps: Mapping[int, Mapping[str, float | None]],
    *,
    answers: Mapping[str, tuple[str, str]] | None = None,
    summary: Mapping[str, Any] | None = None,
    config: str = "",
) -> Path:
    """A run directory; `answers` has the initial model's and the trained model's for each prompt."""
    folder.mkdir(parents=True)
    rows = [json.dumps({"step": step, "data": data}) for step, data in steps.items()]
    (folder / "metrics.jsonl").write_text("".join(f"{row}\n" for row in rows), "utf-8")
    samples = []
    for index, step in enumerate((0, max(steps, default=1))):
        for prompt, texts in (answers or {}).items():
            row = {"step": step, "data_source": "sums", "prompt": prompt, "generation": texts[index]}
            samples.append(json.dumps(row | {"ground_truth": "4", "score": float(index), "initial_generation": None}))
    if samples:
        (folder / "val_samples.jsonl").write_text("".join(f"{row}\n" for row in samples), "utf-8")
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary), "utf-8")
    if config:
        (folder / "config.yaml").write_text(config, "utf-8")
    return folder


def compare(*folders: Path, output: Path | None = None) -> str:
    runs, empty = read_runs(folders)
    return write_comparison(runs, output, empty=empty).read_text("utf-8")


def plain(html: str) -> str:
    """Text without markup, white space run together."""
    return " ".join(re.sub(r"<(style|title)\b.*?</\1>|<[^>]*>", " ", html, flags=re.DOTALL).split())


def section(html: str, heading: str) -> str:
    return next(part for part in html.split("<section>") if part.startswith(f"<h2>{heading}"))


def rows(html: str, heading: str) -> list[list[str]]:
    """Text of the cells of a section's table, without the names that narrow windows repeat in each."""
    table = re.findall(r"<tr>.*?</tr>", section(html, heading), re.DOTALL)
    return [[plain(cell) for cell in re.findall(r"<th.*?</th>|<div>.*?</div></td>", row, re.DOTALL)] for row in table]


def test_runs_are_compared_in_numbers_curves_settings_and_answers(tmp_path: Path) -> None:
    name = "val-core/sums/acc/mean@1"
    config = "trainer:\n  seed: {seed}\n  logger: [console]\nactor:\n  lr: {lr}\n"
    first = write_run(
        tmp_path / "low",
        {0: {name: 0.1}, 1: STEP, 2: STEP | {name: 0.4}},
        answers={"2+2=": ("5", "4"), "1+3=": ("3", "<b>4</b>")},
        summary={"seconds": 75, "seed": 1},
        config=config.format(seed=1, lr=1e-6),
    )
    second = write_run(
        tmp_path / "high",
        {0: {name: 0.1}, 1: STEP, 2: STEP, 3: STEP | {name: 0.7}},
        answers={"2+2=": ("5", "four"), "9+9=": ("1", "18")},
        summary={"seconds": 100, "seed": 1},
        config=config.format(seed=1, lr=1e-5) + "extra: true\n",
    )
    html = compare(first, second)
    assert rows(html, "Headline numbers") == [
        ["Quantity", "A low", "B high"],
        ["State", "finished", "finished"],
        ["Validation accuracy, sums mean over the responses of a prompt", "0.100 &rarr; 0.400", "0.100 &rarr; 0.700"],
        ["Mean score in training first and last step", "0.500 &rarr; 0.500", "0.500 &rarr; 0.500"],
        ["Steps", "2", "3"],
        ["Tokens prompts and responses", "800", "1200"],
        ["Throughput tokens per second and device", "100", "100"],
        ["Duration", "1 min 15 s", "1 min 40 s"],
        ["Seed", "1", "1"],
    ]
    assert rows(html, "Configuration") == [
        ["Key", "A low", "B high"],
        ["actor.lr", "1e-06", "1e-05"],
        ["extra", "not set", "true"],
    ]
    assert rows(html, "Phases") == [["Phase", "A low", "B high"], ["gen", "2", "2"]]
    answers = plain(section(html, "Generations"))
    assert "1 of 1 prompts that all runs validated on" in answers
    assert "2+2= Ground truth 4 Initial model score 0 5 A low step 2, score 1 4 B high step 3, score 1 four" in answers
    assert "9+9=" not in answers
    figures = re.findall(r"<figure>.*?</figure>", html, re.DOTALL)
    assert [plain(figure).split(" step")[0].split(" mean")[0] for figure in figures][:2] == [
        "Validation accuracy, sums",
        "Reward",
    ]
    for figure in figures:
        assert 'class="line s0"' in figure
        assert 'class="line s1"' in figure
        assert re.findall(r'class="tag (s\d)"[^>]*>(\w+)<', figure) in (
            [("s0", "A"), ("s1", "B")],
            [("s1", "B"), ("s0", "A")],
        )
    assert "step 2&#x0A;" not in html
    assert "<title>step 2\nA low: 0.5\nB high: 0.5</title>" in html


def test_settings_that_are_equal_are_not_shown(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, {1: STEP}, config="a:\n  b: 1\n") for name in ("x", "y")]
    assert "The configurations are equal." in section(compare(*runs), "Configuration")


def test_a_run_without_a_configuration_is_named_and_the_others_are_compared(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, {1: STEP}, config=f"a: {name}\n") for name in ("x", "y")]
    html = compare(*runs, write_run(tmp_path / "z", {1: STEP}))
    assert rows(html, "Configuration") == [["Key", "A x", "B y"], ["a", "x", "y"]]
    assert "Without a readable config.yaml: C z." in plain(html)


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abc"), st.none() | st.booleans() | st.integers(0, 2)), min_size=2, max_size=4
    )
)
@settings(deadline=None)
def test_exactly_the_keys_that_differ_are_found(configs: list[dict[str, Any]]) -> None:
    found = differences(configs)
    for key in "abc":
        values = [repr(config[key]) if key in config else "absent" for config in configs]
        assert (key in found) == (len(set(values)) > 1)


def test_runs_of_equal_names_are_told_apart_by_as_few_folders_as_it_takes(tmp_path: Path) -> None:
    paths = [tmp_path / path for path in ("a/run", "b/run", "c/other", "x/1/same/run", "y/1/same/run")]
    assert labels(paths) == ["a/run", "b/run", "other", "x/1/same/run", "y/1/same/run"]
    assert labels(paths[:1]) == ["run"]
    assert labels([Path("/run"), Path("/deep/run")]) == ["/run", "deep/run"]


@given(st.lists(st.lists(st.sampled_from("ab"), min_size=1, max_size=4), unique_by=tuple, min_size=1, max_size=8))
@settings(deadline=None)
def test_labels_are_unique_and_end_their_paths(names: list[list[str]]) -> None:
    paths = [Path("/", *parts) for parts in names]
    found = labels(paths)
    assert len(set(found)) == len(found)
    assert all(str(path).endswith(label) for path, label in zip(paths, found, strict=True))


def test_tags_go_on_beyond_the_alphabet() -> None:
    assert [tag(index) for index in (0, 25, 26, 27, 51, 52, 701, 702)] == [
        "A",
        "Z",
        "AA",
        "AB",
        "AZ",
        "BA",
        "ZZ",
        "AAA",
    ]


def test_runs_with_different_n_share_the_mean_and_metrics_of_one_run_are_named(tmp_path: Path) -> None:
    single = {"val-core/sums/acc/mean@1": 0.25, "critic/vf_loss": 0.1}
    several = {"val-core/sums/acc/mean@8": 0.5, "val-core/sums/acc/best@8": 0.9}
    html = compare(write_run(tmp_path / "x", {1: single}), write_run(tmp_path / "y", {1: several}))
    assert "<title>step 1\nA x: 0.25\nB y: 0.5</title>" in html
    assert "Only one run has: Validation accuracy, sums, best of 8 responses of a prompt (B)." in plain(html)
    assert "Only one run has: Value loss, squared error of the returns (A)." in plain(html)
    assert html.count("<figure>") == 1


def test_runs_that_are_empty_unfinished_failed_or_damaged_are_compared_as_far_as_they_go(tmp_path: Path) -> None:
    good = write_run(tmp_path / "good", dict.fromkeys(range(1, 9), STEP), summary={"seed": 1})
    begun = write_run(tmp_path / "begun", {}, config="a: 1\n")
    damaged = write_run(tmp_path / "damaged", {1: STEP, 2: STEP})
    with (damaged / "metrics.jsonl").open("a") as file:
        file.write('nonsense\n{"step": 3, "data": {"cri')
    failed = write_run(tmp_path / "failed", {1: STEP})
    (failed / "error.log").write_text("Traceback (most recent call last):\n  File\nValueError: no\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    text = plain(compare(good, begun, damaged, failed, empty))
    assert "Comparison of 4 runs" in text
    assert f"The folder {empty} holds nothing of a run yet" in text
    assert f"Line 3 of {damaged / 'metrics.jsonl'} is not what a run writes: not JSON" in text
    assert "Run B (begun) has not finished: it has logged no step yet." in text
    assert "Run C (damaged) has not finished: it has logged 2 steps." in text
    assert "Run D (failed) failed (after step 1): ValueError: no" in text


@pytest.mark.parametrize(
    ("names", "message"),
    [(["a", "missing"], "There is no run directory"), (["a", "../here/a"], "more than once"), (["e", "f"], "None of")],
)
def test_what_cannot_be_compared_is_one_paragraph(tmp_path: Path, names: Sequence[str], message: str) -> None:
    here = tmp_path / "here"
    write_run(here / "a", {1: STEP})
    (here / "e").mkdir()
    (here / "f").mkdir()
    with pytest.raises(UserError, match=message):
        read_runs([here / name for name in names])


def test_a_page_is_replaced_and_anybody_else_s_file_is_not(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, {1: STEP}) for name in ("x", "y")]
    runs, _ = read_runs(folders)
    assert write_comparison(runs) == tmp_path / "comparison.html"
    assert write_comparison(runs) == tmp_path / "comparison.html"
    (tmp_path / "comparison.html").write_text("<html>mine</html>")
    assert write_comparison(runs) == tmp_path / "comparison-2.html"
    assert write_comparison(runs) == tmp_path / "comparison-2.html"
    with pytest.raises(UserError, match="is not a page that verl-cli report wrote"):
        write_comparison(runs, tmp_path / "comparison.html")
    assert (tmp_path / "comparison.html").read_text() == "<html>mine</html>"
    with pytest.raises(UserError, match="There is no folder"):
        write_comparison(runs, tmp_path / "missing" / "page.html")
    assert write_comparison(runs, tmp_path / "page.html") == tmp_path / "page.html"


@pytest.mark.alone
def test_the_command_writes_one_page_or_compares_and_prints_where(tmp_path: Path) -> None:
    first, second = (write_run(tmp_path / name, {1: STEP}, summary={"seed": 1}) for name in ("x", "y"))
    run = CliRunner().invoke
    for arguments, path in (
        ([first], first / "report.html"),
        ([first, "--output", tmp_path / "one.html"], tmp_path / "one.html"),
        ([first, second], tmp_path / "comparison.html"),
        ([first, second, "--output", tmp_path / "two.html"], tmp_path / "two.html"),
    ):
        done = run(app, ["report", *map(str, arguments)])
        assert (done.exit_code, done.stdout, done.stderr) == (0, f"{path}\n", "")
        assert path.is_file()
    with (second / "metrics.jsonl").open("a") as file:
        file.write("nonsense\n")
    for folders in ([second], [first, second]):
        done = run(app, ["report", *map(str, folders)])
        assert done.exit_code == 0
        assert done.stderr.startswith(f"warning: Line 2 of {second / 'metrics.jsonl'} is not what a run writes")
    done = run(app, ["report", str(tmp_path / "missing")])
    assert done.exit_code == 1
    assert done.stderr.startswith("error: There is no run directory")
    (tmp_path / "notes.html").write_text("mine")
    done = run(app, ["report", str(first), "--output", str(tmp_path / "notes.html")])
    assert done.exit_code == 1
    assert (tmp_path / "notes.html").read_text() == "mine"
