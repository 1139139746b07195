"""Which files a user's own function consists of, found without importing any of them."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from verl_cli.commands.train import run_training
from verl_cli.config import resolve
from verl_cli.run.own_code import own_files
from verl_cli.run.same_run import content

Overrides = Callable[..., list[str]]
RAISES = "raise SystemExit('was imported')\n"


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def names(place: Path | str) -> set[str]:
    return set(own_files(str(place)))


def test_imports_are_followed_through_modules_beside_the_file(tmp_path: Path) -> None:
    write(
        tmp_path,
        reward="import json, helper\ndef compute_score(**row):\n    from rules.exact import match as same\n",
        helper=f"import rules as r, missing\nfrom deeper import thing\n{RAISES}",
        deeper="import helper, torch, verl_algos\n",
        unused="",
    )
    write(tmp_path / "rules", exact="from . import text\nfrom .numbers import near\nfrom ..helper import other\n")
    write(tmp_path / "rules", text=RAISES, numbers="", other="").joinpath("__init__.py").write_text(RAISES)
    found = own_files(str(tmp_path / "reward.py"))
    assert set(found) == {"", "helper", "deeper", "rules", "rules.exact", "rules.text", "rules.numbers"}
    assert found["rules"] == (tmp_path / "rules" / "__init__.py").resolve()


def test_what_is_not_the_users_is_left_out(tmp_path: Path) -> None:
    """A standard module cannot be replaced by a file beside, and this program's packages are not the user's."""
    write(tmp_path, reward="import random, verl\nfrom verl_algos import rewards\n", random="", verl="", verl_algos="")
    assert names(tmp_path / "reward.py") == {""}
    assert names("verl_algos.rewards") == names("grpo") == names("") == names(tmp_path / "none.py") == set()


def test_a_file_that_cannot_be_parsed_is_itself_alone(tmp_path: Path) -> None:
    write(tmp_path, reward="import helper\nreturn (\n", helper="")
    assert names(tmp_path / "reward.py") == {""}


@pytest.mark.parametrize(
    ("parent", "followed"), [("project", {"mine.maths", "mine", "beside"}), ("site-packages", {"mine.maths", "mine"})]
)
def test_a_module_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: str, followed: set[str]) -> None:
    """What an installed package imports from beside it are other packages, which are not the user's."""
    folder = write(tmp_path / parent, beside=RAISES)
    write(folder / "mine", score="from .maths import near\nimport beside\n", maths=RAISES)
    (folder / "mine" / "__init__.py").write_text(RAISES)
    monkeypatch.syspath_prepend(str(folder))
    for place in ("mine.score", "pkg://mine.score"):
        found = own_files(place)
        assert set(found) == {"", *followed}
        assert found[""] == folder / "mine" / "score.py"
    assert names("mine.score.none") == names("mine.none") == set()


def test_modules_of_the_working_directory_are_the_users_where_python_looks_there(tmp_path: Path) -> None:
    write(tmp_path / "rewards", reward="import common\n")
    write(tmp_path, common=RAISES)
    told = "from verl_cli.run.own_code import own_files; print(sorted(own_files('rewards/reward.py')))"
    asked = subprocess.run([sys.executable, "-c", told], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert asked.stdout.strip() == "['', 'common']"


def test_a_changed_module_that_the_reward_imports_is_refused(
    overrides: Overrides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "own"))
    write(
        tmp_path / "own",
        reward="from scale import scaled\n\ndef compute_score(solution_str, **row):\n    return scaled(solution_str)\n",
        scale="def scaled(text):\n    return sum(map(ord, text)) % 7 / 7\n",
    )
    keys = {
        "reward__custom_reward_function__path": tmp_path / "own" / "reward.py",
        "trainer__val_before_train": "false",
    }
    run_training(overrides(**keys, trainer__total_training_steps=1))
    capsys.readouterr()
    before = content(resolve(overrides(**keys)).config)
    write(tmp_path / "own", scale="def scaled(text):\n    return sum(map(ord, text)) % 5 / 5\n")
    after = content(resolve(overrides(**keys)).config)
    assert {key for key, value in after.items() if value != before[key]} == {
        "reward.custom_reward_function.path imports scale"
    }
    with pytest.raises(SystemExit):
        run_training(overrides(**keys))
    said = " ".join(capsys.readouterr().err.split())
    assert "The module scale, which the code of reward.custom_reward_function.path imports, has changed" in said
    sys.modules.pop("scale", None)
