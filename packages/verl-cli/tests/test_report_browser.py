"""The report pages in a real browser: drawn, readable in light and dark, wide and narrow, and asking for nothing."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from verl_cli.report import read_runs, write_comparison, write_report

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PROGRAM = next((path for name in BROWSERS if (path := shutil.which(name))), None)
# The browser talks over its file descriptors 3 and 4; a small program puts our pipes there.
PIPES = """
import os, sys
from fcntl import F_DUPFD, fcntl
reading, writing = (fcntl(int(number), F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(reading, 3)
os.dup2(writing, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """A headless browser without a network, steered over pipes by the DevTools protocol."""

    def __init__(self, program: str, profile: Path) -> None:
        ours, theirs = os.pipe(), os.pipe()
        command = [program, "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-quic"]
        command += ["--disable-dev-shm-usage"]
        command += ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
        command += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}"]
        self.log = (profile.parent / "browser.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-c", PIPES, str(theirs[0]), str(ours[1]), *command],
            pass_fds=(theirs[0], ours[1]),
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )
        os.close(theirs[0])
        os.close(ours[1])
        self.input, self.output = theirs[1], ours[0]
        self.count, self.session, self.received = 0, "", b""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1
        )

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its answer; events on the way are kept."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        data = memoryview(json.dumps(message).encode() + b"\0")
        while data:
            data = data[os.write(self.input, data) :]
        while True:
            answer = self._read()
            if answer.get("id") == self.count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self.received:
            ready, _, _ = select.select([self.output], [], [], 60)
            part = os.read(self.output, 1 << 20) if ready else b""
            log = Path(self.log.name).read_text(errors="replace")[-2000:]
            assert part, f"the browser {'ended' if ready else 'said nothing for a minute'}: {log}"
            self.received += part
        line, _, self.received = self.received.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, path: Path, width: int, *, dark: bool = False, media: str = "screen") -> None:
        """Show a page in a window of a width in pixels."""
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=1000, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._read()

    def run(self, script: str) -> Any:
        """Value of a JavaScript expression; the page's policy does not bind the protocol."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """What the console says, and every address that was asked for apart from the page itself."""
        self.run("0")
        found = []
        for event in self.events:
            if event["method"] == "Network.requestWillBeSent":
                url = event["params"]["request"]["url"]
                if event["params"]["type"] != "Document":
                    found.append(f"request {url}")
            elif event["method"] in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
                found.append(json.dumps(event["params"]))
        return found

    def screenshot(self, path: Path) -> None:
        """Write the whole page as a PNG, for a person to look at."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        """End the browser."""
        os.close(self.input)
        os.close(self.output)
        self.process.terminate()
        self.process.wait(timeout=30)
        self.log.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests; without one they fail where CI is set, since a skipped look is no look."""
    if PROGRAM is None:
        reason = f"no browser on this machine (one of {', '.join(BROWSERS)}); on Debian: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with contextlib.closing(Browser(PROGRAM, tmp_path_factory.mktemp("browser") / "profile")) as started:
        yield started


EVIL = '</td></script><script>console.log("run")</script><img src="https://example.com/x.png"><b>&amp;\u202e\x00'
LONG = "word " * 300 + "x" * 900 + EVIL


def write_run(folder: Path, steps: int, *, critic: bool, n: int, seed: int) -> Path:
    """A run as long and as awkward as they come: several data sources, extreme and odd values, markup in its texts."""
    random_ = random.Random(seed)
    folder.mkdir(parents=True)
    sources = ("openai/gsm8k", "a/very/long/name/of/a/data/source/without/any/space", EVIL)
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as file:
        for step in range(steps + 1):
            data: dict[str, float | None] = {}
            if step:
                data |= {"critic/score/mean": random_.random() * step / steps, "critic/rewards/mean": random_.random()}
                data |= {"critic/score/max": 1.0, "critic/score/min": 0.0, "actor/entropy": 2.0 / step}
                data |= {"actor/reward_kl_penalty": random_.random() * 1e-7, "actor/ppo_kl": random_.gauss(0, 1e-9)}
                data |= {"actor/grad_norm": None if step == 3 else 1e9 * random_.random(), "actor/lr": 1e-6}
                data |= {"response_length/mean": 100000 + random_.random(), "response_length/max": 100002.0}
                data |= {"training/rollout_probs_diff_mean": 1.00001 + 1e-6 * random_.random()}
                data |= {f"reward/number_{index}": random_.random() for index in range(10)}
                data |= {"perf/throughput": 12345.0, "perf/total_num_tokens": 1e6, "timing_s/step": 9.0}
                data |= {f"timing_s/phase_{index}": random_.random() for index in range(11)}
                data |= {"critic/vf_loss": 1 / step, "critic/vf_explained_var": -2.5} if critic else {}
            if step in (0, steps):
                statistics = ("mean", "best", "maj") if n > 1 else ("mean",)
                data |= {
                    f"val-core/{source}/acc/{what}@{n}": random_.random() for source in sources for what in statistics
                }
            file.write(json.dumps({"step": step, "data": data}) + "\n")
    with (folder / "val_samples.jsonl").open("w", encoding="utf-8") as file:
        for step in (0, steps):
            for source in sources:
                row = {"step": step, "data_source": source, "prompt": LONG, "generation": LONG, "ground_truth": EVIL}
                for reason in ("stop", "length"):
                    file.write(json.dumps(row | {"score": 0.5, "finish_reason": reason}) + "\n")
    (folder / "summary.json").write_text(json.dumps({"seconds": 1e5, "seed": seed}))
    (folder / "config.yaml").write_text(json.dumps({"trainer": {"seed": seed, "path": "x" * 400, "text": LONG[:900]}}))
    return folder


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of a short run, of a run of thousands of steps, of one that failed, and comparisons of 2 and of 8."""
    root = tmp_path_factory.mktemp("runs")
    short = write_run(root / "short", 4, critic=True, n=1, seed=1)
    long = write_run(root / "long", 1500, critic=False, n=8, seed=2)
    failed = write_run(root / "failed", 12, critic=True, n=1, seed=3)
    (failed / "summary.json").unlink()
    (failed / "error.log").write_text(f"Traceback (most recent call last):\n  File\nValueError: {LONG}\n")
    many = [
        write_run(root / f"a-{'long-' * 12}name-{index}" / "run", 60, critic=True, n=1, seed=index)
        for index in range(5)
    ]
    runs, _ = read_runs([short, long])
    eight, _ = read_runs([short, long, failed, *many])
    return {
        "short": write_report(short),
        "long": write_report(long),
        "failed": write_report(failed),
        "two runs": write_comparison(runs, root / "two.html"),
        "eight runs": write_comparison(eight, root / "eight.html"),
    }


# What is wrong with the charts: without a size, or with text that leaves its chart, its card or crosses other text.
FAULTS = """
(() => {
  const faults = [];
  const name = e => (e.closest("figure")?.querySelector("figcaption")?.textContent ?? "") + ": " + e.textContent;
  const outside = (inner, outer) => inner.left < outer.left - 1 || inner.right > outer.right + 1
    || inner.top < outer.top - 1 || inner.bottom > outer.bottom + 1;
  const charts = [...document.querySelectorAll("svg.chart")];
  if (!charts.length) faults.push("no charts");
  for (const chart of charts) {
    const box = chart.getBoundingClientRect();
    if (box.width < 200 || box.height < 100) faults.push("small chart " + name(chart));
    const card = chart.closest("figure").getBoundingClientRect();
    const marks = [...chart.querySelectorAll(".line, .dot, .bar")];
    if (!marks.some(m => { const b = m.getBoundingClientRect(); return b.width + b.height > 1; }))
      faults.push("nothing drawn " + name(chart));
    for (const mark of marks)
      if (outside(mark.getBoundingClientRect(), box)) { faults.push("mark outside " + name(chart)); break; }
    const texts = [...chart.querySelectorAll("text")].map(t => [t, t.getBoundingClientRect()]);
    for (const [text, b] of texts) if (outside(b, box) || !b.width) faults.push("text outside chart " + name(text));
    texts.forEach(([one, a], index) => { for (const [other, b] of texts.slice(index + 1)) {
      // Line boxes are taller than letters: two lines may share 3 pixels of empty space.
      if (a.left < b.right - 0.5 && b.left < a.right - 0.5 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
        faults.push(`"${one.textContent}" crosses "${other.textContent}" in ` + name(chart));
    } });
    const around = "figcaption, figcaption *, .legend li, .good, .warning";
    for (const part of chart.closest("figure").querySelectorAll(around))
      if (outside(part.getBoundingClientRect(), card)) faults.push("text outside card " + name(part));
  }
  const page = document.documentElement;
  if (page.scrollWidth > page.clientWidth) faults.push(`sideways scroll ${page.scrollWidth} > ${page.clientWidth}`);
  for (const e of document.querySelectorAll("td, th, dd, dt, h1, h4, li, p, pre, .text"))
    if (e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== "inline" && e.clientWidth)
      faults.push("clipped " + e.tagName + " " + e.textContent.slice(0, 60));
  return faults;
})()
"""

# The least contrast of text and of lines against what is behind them, as WCAG defines it.
CONTRAST = """
(() => {
  const rgb = c => (c.match(/[\\d.]+/g) ?? []).map(Number);
  const linear = v => v <= 10.02 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4;
  const light = c => { const [r, g, b] = rgb(c).map(linear);
    return .2126 * r + .7152 * g + .0722 * b; };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + .05) / (y + .05); };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (rgb(c)[3] !== 0) return c; } return "rgb(255, 255, 255)"; };
  let text = 99, line = 99;
  for (const e of document.querySelectorAll("body *")) {
    const style = getComputedStyle(e), inSvg = e.closest("svg");
    if (e.matches(".line")) line = Math.min(line, ratio(style.stroke, behind(e)));
    else if (e.matches(".bar, .dot")) line = Math.min(line, ratio(style.fill, behind(e)));
    else if (inSvg ? e.matches("text") : [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()))
      text = Math.min(text, ratio(inSvg ? style.fill : style.color, behind(e)));
  }
  return [text, line, light(getComputedStyle(document.body).backgroundColor)];
})()
"""


@pytest.mark.parametrize("width", [500, 1600])
@pytest.mark.parametrize("name", ["short", "long", "failed", "two runs", "eight runs"])
def test_a_page_is_drawn_whole_and_asks_for_nothing(
    browser: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    browser.open(pages[name], width)
    assert browser.run(FAULTS) == []
    assert browser.complaints() == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["failed", "eight runs"])
def test_a_page_can_be_read_in_light_and_dark(browser: Browser, pages: dict[str, Path], name: str, dark: bool) -> None:
    browser.open(pages[name], 1000, dark=dark)
    text, line, background = browser.run(CONTRAST)
    assert text >= 4.5
    assert line >= 3.0
    assert (background < 0.1) == dark


def test_lines_differ_without_colour(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["eight runs"], 1200)
    dashes = browser.run(
        "[...document.querySelectorAll('.runs .line')].map(line => getComputedStyle(line).strokeDasharray)"
    )
    assert len(dashes) == 8
    assert len(set(dashes)) == 8


@pytest.mark.parametrize("name", ["short", "eight runs"])
def test_a_printed_page_is_light_and_has_what_is_folded_on_screen(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    browser.open(pages[name], 794, dark=True, media="print")
    text, line, background = browser.run(CONTRAST)
    assert (text >= 4.5, line >= 3.0, background) == (True, True, 1.0)
    folded = "[...document.querySelectorAll('details > :not(summary)')]"
    assert browser.run(f"{folded}.length") > 0
    assert browser.run(f"{folded}.filter(e => !e.getBoundingClientRect().height).length") == 0
    assert browser.run("document.documentElement.scrollWidth") <= 794


def test_folded_texts_open_without_a_script(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["short"], 1000)
    whole = "document.querySelector('.fold > .text')"
    assert browser.run(f"{whole}.checkVisibility()") is False
    browser.run("document.querySelector('.fold > summary').click()")
    assert browser.run(f"{whole}.checkVisibility()") is True
    assert browser.run(f"{whole}.textContent") == LONG.replace("\0", "\N{SYMBOL FOR NULL}").replace("\u202e", "\\u202e")
    assert browser.run("document.querySelector('.fold .start').checkVisibility()") is False


def test_what_is_wrong_with_a_chart_is_seen(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    svg = '<svg class="chart" width="300" height="150">{}</svg>'
    line = '<line class="line" x1="10" x2="90" y1="9" y2="9" stroke="red"/>'
    texts = ['<text x="50" y="50">one</text><text x="60" y="52">two</text>', '<text x="290" y="50">outside</text>', ""]
    figures = [f"<figure><figcaption></figcaption>{svg.format(line + text)}</figure>" for text in texts]
    figures.append(f"<figure>{svg.format('')}</figure>")
    page.write_text("".join([*figures, '<p style="width: 2000px">wide</p>']))
    browser.open(page, 1000)
    faults = browser.run(FAULTS)
    assert [fault.split(" ")[0] + " " + fault.split(" ")[1] for fault in faults] == [
        '"one" crosses',
        "text outside",
        "nothing drawn",
        "sideways scroll",
    ]


def test_the_browser_tells_of_a_page_that_runs_or_asks_for_something(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<script>console.log(1)</script><img src='https://example.com/x.png'><svg class=chart></svg>")
    browser.open(page, 500)
    complaints = browser.complaints()
    assert any("request https://example.com/x.png" in complaint for complaint in complaints)
    assert any('"type": "log"' in complaint for complaint in complaints)
