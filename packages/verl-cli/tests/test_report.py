"""The report page: what it shows of a run, that it stands alone, and what it does with a run that is not whole."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_cli.errors import UserError
from verl_cli.report import write_report

VOID = {"meta", "br", "circle", "line", "polyline", "polygon"}

METRICS = {
    "critic/score/mean": 0.5,
    "critic/score/max": 1.0,
    "actor/reward_kl_penalty": 0.01,
    "actor/ppo_kl": 0.0001,
    "actor/entropy": 1.5,
    "actor/pg_clipfrac": 0.01,
    "actor/grad_norm": 1.25,
    "actor/lr": 1e-6,
    "critic/vf_loss": 0.2,
    "critic/vf_explained_var": -0.5,
    "training/rollout_probs_diff_mean": 1e-6,
    "reward/no_marker": 0.25,
    "response_length/mean": 2.5,
    "response_length/clip_ratio": 0.125,
    "prompt_length/mean": 6.0,
    "perf/throughput": 13500.0,
    "perf/total_num_tokens": 4096,
    "timing_s/gen": 2.0,
    "timing_s/update_actor": 1.0,
    "timing_s/step": 3.5,
    "val-core/addition/acc/mean@1": 0.25,
}
TITLES = [
    "Validation accuracy",
    "Reward",
    "Spread of the scores",
    "KL to the reference",
    "KL of the update (ppo_kl)",
    "Entropy",
    "Numbers of the reward function",
    "Clipped tokens",
    "Gradient norm",
    "Learning rate",
    "Value loss",
    "Explained variance of the values",
    "Rollout against engine",
    "Response length",
    "Responses cut at the length limit",
    "Prompt length",
    "Throughput",
    "Time of a step",
    "Phases of a step",
]
WITHOUT_CRITIC = [title for title in TITLES if title not in ("Value loss", "Explained variance of the values")]


class Page(HTMLParser):
    """A page taken apart: text by element, hover titles, addresses; raises where elements are not nested properly."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: dict[str, list[str]] = {}
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.polylines: list[str] = []
        self.polygons: list[str] = []
        self.scopes: set[str] = set()
        self.marked: list[tuple[str, str, int]] = []
        self.cells: list[list[tuple[str, int]]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in {"src", "href", "xlink:href", "srcset", "action", "data"} or name.startswith("on"):
                self.addresses.append(f"{tag} {name}={value}")
            if name == "points":
                (self.polylines if tag == "polyline" else self.polygons).append(value or "")
            if name == "scope":
                self.scopes.add(value or "")
        if tag not in VOID:
            self.open.append(tag)
            self.text.setdefault(tag, []).append("")
            self.marked += [(word, tag, len(self.text[tag]) - 1) for word in (dict(attrs).get("class") or "").split()]
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append((tag, len(self.text[tag]) - 1))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self.open):
            self.text[tag][-1] += data

    def classes(self, name: str) -> list[str]:
        """Text of the elements of a class."""
        return [self.text[tag][index] for word, tag, index in self.marked if word == name]

    def rows(self) -> list[list[str]]:
        """Text of each cell, row by row; cells repeat their column's name for narrow windows, which is left out."""
        rows, heads = list[list[str]](), list[str]()
        for cells in self.cells:
            texts = [self.text[tag][index] for tag, index in cells]
            if any(tag == "td" for tag, _ in cells):
                texts = [text.removeprefix(head) for text, head in zip(texts, heads, strict=True)]
            else:
                heads = ["", *texts[1:]]
            rows.append(texts)
        return rows

    def titles(self) -> list[str]:
        """Titles of the charts, without unit and last value."""
        return [max((t for t in TITLES if text.startswith(t)), key=len) for text in self.text.get("figcaption", [])]


def write_run(
    folder: Path,
    steps: Mapping[int, Mapping[str, float | None]],
    samples: Sequence[Mapping[str, Any]] = (),
    summary: Mapping[str, Any] | None = None,
    config: str = "",
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(json.dumps({"step": step, "data": data}) + "\n" for step, data in steps.items())
    (folder / "metrics.jsonl").write_text(rows, "utf-8")
    if samples:
        lines = "".join(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples)
        (folder / "val_samples.jsonl").write_text(lines, "utf-8")
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary), "utf-8")
    if config:
        (folder / "config.yaml").write_text(config, "utf-8")


def sample(step: int, prompt: str, generation: str, initial: str | None, score: float) -> dict[str, Any]:
    return {
        "step": step,
        "prompt": prompt,
        "generation": generation,
        "initial_generation": initial,
        "ground_truth": "42",
        "score": score,
        "data_source": "addition",
    }


def report(folder: Path) -> Page:
    path = write_report(folder)
    assert path == folder / "report.html"
    html = path.read_text("utf-8")
    for word in ("http:", "https:", "//", "@import", "url(", "src=", "href="):
        assert word not in html, f"the page must ask the network for nothing, and holds {word}"
    page = Page(html)
    assert page.addresses == []
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    return page


@pytest.mark.alone
def test_a_finished_run_has_every_chart_its_headline_its_samples_and_its_configuration(tmp_path: Path) -> None:
    write_run(
        tmp_path / "quickstart",
        {0: {"val-core/addition/acc/mean@1": 0.125}, 1: METRICS, 2: METRICS | {"val-core/addition/acc/mean@1": 0.75}},
        [
            sample(0, "20+22=", "7", None, 0.0),
            sample(0, "40+2=", "42", None, 1.0),
            sample(2, "20+22=", "42", "7", 1.0),
            sample(2, "40+2=", "41", "42", 0.0),
        ],
        {"val_accuracy_before": 0.125, "val_accuracy_after": 0.75, "seconds": 131.4, "seed": 7},
        "trainer:\n  seed: 7\n",
    )
    page = report(tmp_path / "quickstart")
    assert page.text["h1"] == ["quickstart"]
    assert page.titles() == TITLES
    assert dict(zip(page.text["dt"], page.text["dd"][::2], strict=True)) == {
        "Validation accuracy": "0.125 \u2192 0.750",
        "Mean score in training": "0.500 \u2192 0.500",
        "Steps": "2",
        "Throughput": "13.5k",
        "Duration": "2 min 11 s",
        "Seed": "7",
    }
    assert page.text["dd"][1] == "mean@1, +0.625 from step 0 to 2"
    rows = page.rows()
    assert rows[:3] == [
        ["Prompt", "Initial model", "After step 2", "Ground truth", "Score"],
        ["20+22=", "7", "42", "42", "0 \u2192 1"],
        ["40+2=", "42", "41", "42", "1 \u2192 0"],
    ]
    assert ["critic/vf_loss", "0.2", "0.2", "0.2", "0.2", "2"] in rows
    assert any("1 score higher than the initial model's and 1 lower" in text for text in page.text["p"])
    assert page.text["pre"] == ["trainer:\n  seed: 7\n"]
    assert "step 1\ngen: 2\nupdate_actor: 1\ntogether: 3" in page.text["title"]
    assert "step 2\nvf_loss: 0.2" in page.text["title"]
    assert not page.classes("notice")


def test_every_chart_has_a_unit_a_title_for_screen_readers_and_what_good_looks_like(tmp_path: Path) -> None:
    write_run(tmp_path, {1: METRICS, 2: METRICS})
    page = report(tmp_path)
    assert len(page.classes("good")) == len(TITLES)
    assert all(page.classes("good"))
    titles = [text for text in page.text["title"] if "over steps 1 to 2; last: " in text]
    assert [title.split(" over steps")[0] for title in titles] == TITLES
    units = [text.removeprefix(title) for text, title in zip(page.text["figcaption"], TITLES, strict=True)]
    assert [title for title, unit in zip(TITLES, units, strict=True) if not re.search("[a-z]", unit)] == []
    assert page.scopes == {"col", "row"}


def test_grpo_without_a_critic_has_the_same_page_without_the_critic_s_charts(tmp_path: Path) -> None:
    step = {name: value for name, value in METRICS.items() if "vf_" not in name} | {"actor/kl_loss": 0.02}
    del step["actor/reward_kl_penalty"]
    write_run(tmp_path, {1: step, 2: step})
    page = report(tmp_path)
    assert page.titles() == WITHOUT_CRITIC
    assert "step 2\nin the loss: 0.02" in page.text["title"]


def test_validation_on_several_sources_has_a_line_each_and_a_chart_for_each_statistic(tmp_path: Path) -> None:
    name = "val-core/{}/{}@8"
    first = {
        name.format(source, what): 0.25 for source in ("gsm8k/acc", "math/acc") for what in ("mean", "best", "maj")
    }
    last = dict.fromkeys(first, 0.5) | {"val-aux/gsm8k/acc/std@8": 0.1, "val-core/poem/reward/mean@8": 3.5}
    write_run(tmp_path, {0: first, 5: last}, summary={"seed": 1})
    page = report(tmp_path)
    captions = page.text["figcaption"]
    assert [text.split("@n")[0] for text in captions] == [
        "Validation accuracymean over the responses of a prompt",
        "Validation accuracy, best",
        "Validation accuracy, maj",
        "Validation rewardpoem, mean@8 3.5",
    ]
    assert "step 5\ngsm8k, best@8: 0.5\nmath, best@8: 0.5" in page.text["title"]
    assert page.text["dt"] == [
        "Validation accuracy, gsm8k",
        "Validation accuracy, math",
        "Validation reward, poem",
        "Steps",
        "Seed",
    ]
    assert ["val-aux/gsm8k/acc/std@8", "0.1", "0.1", "0.1", "0.1", "1"] in page.rows()


def test_more_sources_than_colours_are_several_charts(tmp_path: Path) -> None:
    write_run(tmp_path, {1: {f"val-core/source{index:02}/acc/mean@1": 0.5 for index in range(11)}})
    page = report(tmp_path)
    assert [text.split(")")[0] for text in page.text["figcaption"]] == [
        "Validation accuracy (1 of 2",
        "Validation accuracy (2 of 2",
    ]
    assert "source10, mean@1: 0.5" in page.text["title"][-1]


def test_charts_without_metrics_are_left_out(tmp_path: Path) -> None:
    write_run(tmp_path, {1: {"critic/score/mean": 0.5}, 2: {"critic/score/mean": 1.0}})
    page = report(tmp_path)
    assert page.titles() == ["Reward"]
    assert "has not finished: it has logged 2 steps" in page.classes("notice")[0]
    assert "Prompt" not in page.text["th"]


def test_a_run_that_has_only_begun_has_a_page(tmp_path: Path) -> None:
    write_run(tmp_path, {}, config="trainer:\n  seed: 3\n")
    page = report(tmp_path)
    assert page.titles() == []
    assert page.text["h1"] == [tmp_path.name]
    assert "it has logged no step yet" in page.classes("notice")[0]


def test_values_that_are_not_finite_are_told_below_their_chart(tmp_path: Path) -> None:
    steps: dict[int, dict[str, float | None]] = {step: {"actor/grad_norm": 1.0} for step in range(1, 6)}
    steps[2] = steps[4] = {"actor/grad_norm": None, "actor/entropy": None}
    write_run(tmp_path, steps)
    page = report(tmp_path)
    assert page.titles() == ["Gradient norm"]
    assert page.classes("warning") == ["Not a finite number at 2 steps, first at step 2."]


ERROR_LOG = """===== 2026-11-29 20:00:00 +0000 =====
step: 3
phase: gen

Traceback (most recent call last):
  File "old.py", line 1, in fit
ValueError: an earlier one

trainer:
  seed: 1
===== 2026-11-29 21:00:00 +0000 =====
command: verl-cli train
step: 12
phase: update_actor

Traceback (most recent call last):
  File "a.py", line 1, in one
KeyError: 'inner'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 2, in two
    raise RuntimeError
RuntimeError: shape <mismatch>
second line

trainer:
  seed: 1
"""


def test_a_failed_run_says_so_at_the_top_until_it_goes_on(tmp_path: Path) -> None:
    write_run(tmp_path, {1: METRICS}, config="trainer:\n  seed: 1\n")
    log = tmp_path / "error.log"
    log.write_text(ERROR_LOG, "utf-8")
    start = (tmp_path / "config.yaml").stat().st_mtime_ns
    os.utime(log, ns=(start + 1, start + 1))
    (notice,) = report(tmp_path).classes("notice")
    assert notice.startswith("The run failed (phase update_actor of step 12): RuntimeError: shape <mismatch>error.log")
    assert "KeyError: 'inner'" in notice
    assert "an earlier one" not in notice
    os.utime(tmp_path / "config.yaml", ns=(start + 2, start + 2))
    (notice,) = report(tmp_path).classes("notice")
    assert notice.startswith("The run has not finished")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("{temperature: 0.0}", "Responses are greedy (temperature 0)."),
        (
            "{temperature: 0.7, top_p: 0.9, top_k: 50, n: 4}",
            "Responses are sampled (temperature 0.7, top_p 0.9, top_k 50, 4 responses a prompt).",
        ),
        ("{temperature: 1.0, top_p: 1.0, top_k: -1, n: 1}", "Responses are sampled (temperature 1)."),
        ("{}", "How responses were sampled is not recorded."),
    ],
)
def test_how_responses_were_drawn_is_said(tmp_path: Path, settings: str, sentence: str) -> None:
    config = f"actor_rollout_ref:\n  rollout:\n    val_kwargs: {settings}\n"
    write_run(tmp_path, {}, [sample(3, "a", "b", None, 1.0)], config=config)
    assert sentence in report(tmp_path).text["section"][0]


def test_each_response_is_beside_the_initial_model_s_of_the_same_number(tmp_path: Path) -> None:
    before = [sample(0, "q", text, None, score) for text, score in (("one", 0.0), ("two", 0.5))]
    between = [sample(5, "q", "unseen", "one", 1.0)] * 2
    after = [
        sample(9, "q", text, None, 1.0) | {"finish_reason": reason} for text, reason in (("1", "stop"), ("2", "length"))
    ]
    write_run(tmp_path, {}, [*before, *between, *after])
    assert report(tmp_path).rows()[1:] == [
        ["q", "one", "1ended by itself", "42", "0 \u2192 1"],
        ["q", "two", "2cut at the length limit", "42", "0.5 \u2192 1"],
    ]


def test_a_validation_before_training_alone_is_the_initial_model_s(tmp_path: Path) -> None:
    write_run(tmp_path, {0: {"val-core/addition/acc/mean@1": 0.5}}, [sample(0, "q", "a", None, 0.5)])
    assert report(tmp_path).rows()[:2] == [
        ["Prompt", "Initial model", "Ground truth", "Score"],
        ["q", "a", "42", "0.5"],
    ]


def test_long_texts_are_folded_and_whole(tmp_path: Path) -> None:
    long = "\n".join(f"line {number} & more" for number in range(100))
    write_run(tmp_path, {}, [sample(1, "short", long, None, 0.5)])
    page = report(tmp_path)
    assert page.text["summary"] == [
        "\n".join(long.splitlines()[:8]) + f" ...all {len(long):,} characters",
    ]
    assert page.classes("text")[-2:] == [long, "42"]


def test_a_resumed_run_s_repeated_steps_count_once(tmp_path: Path) -> None:
    rows = [(1, 0.1), (2, 0.2), (3, 0.3), (2, 0.25), (3, 0.35), (4, 0.4)]
    lines = [json.dumps({"step": step, "data": {"critic/score/mean": value}}) for step, value in rows]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    page = report(tmp_path)
    assert [text for text in page.text["title"] if text.startswith("step ")] == [
        "step 1\nscore: 0.1",
        "step 2\nscore: 0.25",
        "step 3\nscore: 0.35",
        "step 4\nscore: 0.4",
    ]


def test_a_line_that_goes_up_goes_up_on_the_page(tmp_path: Path) -> None:
    write_run(tmp_path, {step: {"critic/score/mean": step / 10} for step in (1, 2, 4)})
    (line,) = report(tmp_path).polylines
    xs, ys = zip(*(map(float, point.split(",")) for point in line.split()), strict=True)
    assert ys[0] > ys[1] > ys[2], "SVG counts downwards"
    assert (xs[2] - xs[1]) == pytest.approx(2 * (xs[1] - xs[0]), abs=0.2)


def test_model_output_cannot_become_markup(tmp_path: Path) -> None:
    evil = '</td><script>alert("1")</script>&amp;<img src=x>'
    write_run(
        tmp_path,
        {1: {f"val-core/{evil}/acc/mean@1": 0.5, f"timing_s/{evil}": 1.0, "timing_s/b": 1.0}},
        [sample(1, evil, evil, None, 0.5) | {"ground_truth": evil, "data_source": evil}],
        config=evil,
    )
    write_report(tmp_path)
    page = Page((tmp_path / "report.html").read_text("utf-8"))
    assert not {"script", "img"} & set(page.tags)
    assert page.rows()[1] == [evil, "not recorded", evil, evil, "0.5"]
    assert page.text["pre"] == [evil]


def test_thousands_of_steps_stay_readable_and_keep_their_extremes(tmp_path: Path) -> None:
    steps = {step: {**METRICS, "critic/score/mean": step % 2, "timing_s/gen": 2.0} for step in range(1, 5001)}
    steps[2500]["critic/score/mean"], steps[2500]["timing_s/gen"] = 40.0, 900.0
    write_run(tmp_path, steps)
    page = report(tmp_path)
    assert "steps 1 to 21\nscore: mean 0.5238, 0 to 1" in page.text["title"]
    assert any("score: mean 2.381, 0 to 40" in title for title in page.text["title"])
    tops = [min(float(point.split(",")[1]) for point in band.split()) for band in page.polygons]
    assert min(tops) == pytest.approx(10 + 0.06 / 1.12 * 172, abs=0.2), "the band reaches the peak, 6 % below the top"
    assert "Mean of 21 steps; band: all of them." in page.classes("thinned")
    assert "Bars: mean of 42 steps; thin lines: the highest." in page.classes("thinned")
    assert (tmp_path / "report.html").stat().st_size < 1_500_000


def test_many_phases_keep_their_total(tmp_path: Path) -> None:
    write_run(tmp_path, {1: {f"timing_s/phase{index}": float(index) for index in range(1, 12)}})
    page = report(tmp_path)
    assert "4 others: 10\ntogether: 66" in page.text["title"][-1]


def test_a_run_that_is_being_written_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    write_run(tmp_path, {1: METRICS})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "data": {"critic/sc')
    assert "step 1\nscore: 0.5" in report(tmp_path).text["title"]


@pytest.mark.parametrize(
    ("file", "text", "place", "reason"),
    [
        (
            "metrics.jsonl",
            '{"step": 1, "data": {}}\nnot JSON\n',
            "Line 2 of",
            "not JSON (Expecting value at character 1)",
        ),
        ("metrics.jsonl", '{"data": {}}\n', "Line 1 of", "'step' is missing"),
        ("metrics.jsonl", '{"step": 1, "data": {"a": "b"}}\n', "Line 1 of", "could not convert string to float: 'b'"),
        ("metrics.jsonl", "[]\n7\n8\n", "Line 1 (and 2 more lines) of", "list indices must be integers"),
        ("val_samples.jsonl", '{"step": 1, "data_source": "a"}\n', "Line 1 of", "'prompt' is missing"),
        ("val_samples.jsonl", b"\n\xff\n".decode("latin-1"), "Line 1 (and 1 more line) of", "not JSON"),
        ("summary.json", '{\n"a": 1,\n}', "Line 3 of", "not JSON"),
        ("summary.json", "[]", "", "not a JSON object"),
        ("config.yaml", "a: 1\nb: [\n", "Line 3 of", "not YAML"),
        ("config.yaml", "just text", "", "holds no keys"),
    ],
)
def test_a_damaged_file_is_named_with_its_line_and_the_rest_is_shown(
    tmp_path: Path, file: str, text: str, place: str, reason: str
) -> None:
    write_run(tmp_path, {1: METRICS}, [sample(1, "q", "a", None, 1.0)], {"seed": 1}, "trainer:\n  seed: 1\n")
    (tmp_path / file).write_text(text, "latin-1")
    page = report(tmp_path)
    (problem,) = [notice for notice in page.classes("notice") if str(tmp_path / file) in notice]
    assert problem.startswith(f"{place} {tmp_path / file}".strip())
    assert reason in problem
    assert (len(page.titles()) > 0) == (file != "metrics.jsonl")
    assert ("Generations" in page.text["h2"]) == (file != "val_samples.jsonl")


def test_one_damaged_line_costs_one_line(tmp_path: Path) -> None:
    write_run(tmp_path, {step: {"critic/score/mean": step / 10} for step in range(1, 6)})
    lines = (tmp_path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_bytes(b"".join([*lines[:2], b"\xff\xfe\n", *lines[3:]]))
    page = report(tmp_path)
    assert [title.split("\n")[0] for title in page.text["title"] if title.startswith("step ")] == [
        f"step {step}" for step in (1, 2, 4, 5)
    ]
    assert "Line 3 of" in page.classes("bad")[0]


def test_a_folder_without_a_run_is_one_paragraph_and_gets_no_page(tmp_path: Path) -> None:
    (tmp_path / "holiday.txt").write_text("")
    with pytest.raises(UserError, match="holds no run"):
        write_report(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.txt"]


def test_a_missing_run_directory_is_one_paragraph(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no run directory"):
        write_report(tmp_path / "missing")


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(
        st.integers(0, 10**7),
        st.dictionaries(
            st.sampled_from(list(METRICS)), st.floats(allow_nan=False, allow_infinity=False) | st.none(), max_size=6
        ),
        max_size=8,
    )
)
def test_any_numbers_can_be_drawn(steps: dict[int, dict[str, float | None]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_run(Path(folder), steps)
        page = report(Path(folder))
        for line in page.polylines:
            for point in line.split():
                x, y = map(float, point.split(","))
                assert 0 <= x <= 420
                assert 0 <= y <= 220 or "Validation accuracy" in page.titles()


def test_characters_that_cannot_be_seen_are_shown_as_signs(tmp_path: Path) -> None:
    text = "\x00\x1b[31m\u202e\x7f a\tb\nc \U0001f600 \u4e2d"
    write_run(tmp_path, {}, [sample(1, text, text, None, 1.0)])
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "data": {"reward/\\ud800": 1.0}}\n')
    page = report(tmp_path)
    shown = "\u2400\u241b[31m\\u202e\u2421 a\tb\nc \U0001f600 \u4e2d"
    assert page.classes("text")[:2] == [shown, shown]
    assert "step 1\n\N{REPLACEMENT CHARACTER}: 1" in page.text["title"]
