import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.alone
def test_the_readmes_python_runs(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "4 optimiser steps a step" in run.stdout
    assert "data.train_batch_size" in run.stdout
