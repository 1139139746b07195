import re
from pathlib import Path

import pytest


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    found = re.search(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    assert found is not None
    exec(compile(found.group(1), "README.md", "exec"), {})
    printed = capsys.readouterr()
    assert re.fullmatch(r"\(70,\) \d+\.\d+\n", printed.out) and printed.err == ""
