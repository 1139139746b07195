"""The package as a whole: what it imports, and that its README is true."""

import re
import subprocess
import sys
from pathlib import Path

import verl_algos

README = Path(__file__).parents[1] / "README.md"


def test_import_brings_torch_and_numpy_only() -> None:
    code = (
        "import sys, torch, numpy; before = set(sys.modules); import verl_algos;"
        "print(sorted({name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['verl_algos']"


def test_public_names_exist() -> None:
    for name in verl_algos.__all__:
        assert hasattr(verl_algos, name)


def test_readme_example_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 1
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", blocks[0]], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    promised = re.findall(r"# prints: (.*)", blocks[0])
    assert result.stdout.splitlines() == promised
