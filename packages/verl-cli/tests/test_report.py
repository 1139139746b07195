"""The report page: what it shows of a run, that it stands alone, and what it does with a run that is not whole."""

from __future__ import annotations

import json
import shutil
import subprocess
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

CHROMIUM = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)
VOID = {"meta", "br", "circle", "line", "polyline"}

METRICS = {
    "critic/score/mean": 0.5,
    "actor/reward_kl_penalty": 0.01,
    "actor/ppo_kl": 0.0001,
    "actor/entropy": 1.5,
    "critic/vf_loss": 0.2,
    "critic/vf_explained_var": -0.5,
    "response_length/mean": 2.5,
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
    "KL to the reference, nats per token",
    "KL of the update (ppo_kl), nats per token",
    "Entropy, nats per token",
    "Value loss",
    "Explained variance of the values",
    "Response length, tokens",
    "Throughput, tokens per second and device",
    "Seconds per phase",
]


class Page(HTMLParser):
    """A page taken apart: text by element, hover titles, addresses; raises where elements are not nested properly."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: dict[str, list[str]] = {}
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.polylines: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in {"src", "href", "xlink:href", "srcset", "action", "data"} or name.startswith("on"):
                self.addresses.append(f"{tag} {name}={value}")
            if name == "points":
                self.polylines.append(value or "")
        if tag not in VOID:
            self.open.append(tag)
            self.text.setdefault(tag, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self.open):
            self.text[tag][-1] += data

    def titles(self) -> list[str]:
        """Titles of the charts, without the last value."""
        return [next(title for title in TITLES if text.startswith(title)) for text in self.text.get("figcaption", [])]


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
    for word in ("http:", "https:", "//", "@import", "url("):
        assert word not in html, f"the page must ask the network for nothing, and holds {word}"
    page = Page(html)
    assert page.addresses == []
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    return page


def test_a_finished_run_has_every_chart_its_headline_its_samples_and_its_configuration(tmp_path: Path) -> None:
    write_run(
        tmp_path / "quickstart",
        {0: {"val-core/addition/acc/mean@1": 0.125}, 1: METRICS, 2: METRICS},
        [
            sample(0, "20+22=", "7", "7", 0.0),
            sample(0, "40+2=", "42", "42", 1.0),
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
        "Duration": "2 min 11 s",
        "Seed": "7",
    }
    assert page.text["dd"][1] == "+0.625"
    assert page.text["tr"][1:] == ["20+22=74242" + "0 \u2192 1", "40+2=424142" + "1 \u2192 0"]
    assert "1 score higher than the initial model's and 1 lower" in page.text["section"][1]
    assert page.text["pre"] == ["trainer:\n  seed: 7\n"]
    assert "step 1\ngen: 2\nupdate_actor: 1\ntogether: 3" in page.text["title"]
    assert "step 2\nvf_loss: 0.2" in page.text["title"]


def test_charts_without_metrics_are_left_out(tmp_path: Path) -> None:
    write_run(tmp_path, {1: {"critic/score/mean": 0.5, "actor/entropy": None}, 2: {"critic/score/mean": 1.0}})
    page = report(tmp_path)
    assert page.titles() == ["Reward"]
    assert "The run has not finished" in page.text["p"][0]
    assert "table" not in page.tags


def test_an_empty_run_directory_has_a_page(tmp_path: Path) -> None:
    page = report(tmp_path)
    assert page.titles() == []
    assert page.text["h1"] == [tmp_path.name]


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
    assert page.text["tr"][1] == f"{evil}not recorded{evil}{evil}0.5"
    assert page.text["pre"] == [evil]


def test_thousands_of_steps_stay_readable(tmp_path: Path) -> None:
    write_run(tmp_path, {step: {**METRICS, "critic/score/mean": step % 2} for step in range(1, 5001)})
    page = report(tmp_path)
    assert "mean of steps 1 to 21\nscore: 0.5238" in page.text["title"]
    assert (tmp_path / "report.html").stat().st_size < 1_000_000


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
    ("file", "text"),
    [
        ("metrics.jsonl", "not JSON\n"),
        ("metrics.jsonl", '{"data": {}}\n'),
        ("val_samples.jsonl", '{"step": 1}\n'),
        ("summary.json", "{"),
    ],
)
def test_a_file_that_no_run_writes_is_named_and_an_old_page_stays(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / "report.html").write_text("old", "utf-8")
    (tmp_path / file).write_text(text, "utf-8")
    with pytest.raises(UserError, match=r"holds a file that no run writes"):
        write_report(tmp_path)
    assert (tmp_path / "report.html").read_text("utf-8") == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", file}


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
                assert 0 <= y <= 230 or "Validation accuracy" in page.titles()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [500, 1600])
def test_a_browser_shows_the_page_without_a_sideways_scroll(tmp_path: Path, width: int) -> None:
    assert CHROMIUM is not None
    long = "word " * 400 + "x" * 500
    run = tmp_path / "run"
    write_run(
        run, {1: METRICS, 2: METRICS}, [sample(2, long, long, long, 1.0)], {"seed": 1, "seconds": 2}, f"a: {long}\n"
    )
    html = write_report(run).read_text("utf-8")
    # The page has no script of its own; this copy measures itself into its title.
    probe = "<script>document.title = document.documentElement.scrollWidth + ' ' + innerWidth + ' ' + "
    probe += "[...document.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().height > 100).length</script>"
    measured = tmp_path / "measured.html"
    measured.write_text(html.replace("</body>", probe + "</body>"), "utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},1200", measured.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    content, window, charts = done.stdout.split("<title>")[1].split("</title>")[0].split()
    assert int(content) <= int(window)
    assert int(charts) == len(TITLES)
