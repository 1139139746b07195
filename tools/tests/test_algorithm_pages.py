"""Every algorithm has a page in docs/algorithms that the list of pages leads to and that names its key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from verl_algos.estimators import ESTIMATORS
from verl_algos.loss_options import POLICY_LOSS_OPTIONS, PREFERENCE_LOSS_OPTIONS
from verl_algos.names import MODES

PAGES = Path(__file__).resolve().parents[2] / "docs" / "algorithms"
#: Kind of algorithm, the key that chooses it, its published names.
KINDS = {
    "advantage": ("algorithm.adv_estimator", ESTIMATORS),
    "policy-loss": ("actor_rollout_ref.actor.policy_loss.loss_mode", POLICY_LOSS_OPTIONS),
}
CASES = [(kind, name) for kind, (_, names) in KINDS.items() for name in names]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def page(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_page_for_each_algorithm(kind: str, name: str) -> None:
    file = f"{kind}-{name.replace('_', '-')}.md"
    text = page(file)
    key, _ = KINDS[kind]
    assert f"[{name}]({file})" in page("README.md"), "the list of pages does not lead to it"
    assert re.search(rf"^\| `{re.escape(key)}` \|.*\| `{name}`", text, flags=re.MULTILINE), f"{key}={name} is not named"
    for heading in ("## Keys", "## Metrics", "## When to use it"):
        assert heading in text
    assert re.search(r"^```\n.*=.*\n", text, flags=re.MULTILINE | re.DOTALL), "there is no formula"
    assert "Source" in text and re.search(r"https?://|arXiv", text), "the formula has no source"


def test_no_page_of_an_algorithm_that_is_not_there() -> None:
    known = {f"{kind}-{name.replace('_', '-')}.md" for kind, name in CASES}
    found = {path.name for kind in KINDS for path in PAGES.glob(f"{kind}-*.md")}
    assert found == known


@pytest.mark.parametrize(
    ("file", "names"), [("preference-losses.md", PREFERENCE_LOSS_OPTIONS), ("loss-aggregation.md", MODES)]
)
def test_pages_of_several(file: str, names: tuple[str, ...]) -> None:
    assert f"({file})" in page("README.md")
    for name in names:
        assert re.search(rf"(?<![\w-]){name}(?![\w-])", page(file)), f"{file} does not name {name}"


@pytest.mark.parametrize("file", sorted(path.name for path in PAGES.glob("*.md")))
def test_links_lead_to_pages_that_exist(file: str) -> None:
    for target in LINK.findall(page(file)):
        if "://" not in target:
            assert (PAGES / target).exists(), f"{file} links {target}"
