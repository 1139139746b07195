import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_the_readmes_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    exec(compile(example, str(README), "exec"), {})
    assert "weight_version=1" in capsys.readouterr().out
