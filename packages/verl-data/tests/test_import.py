import subprocess
import sys


def test_import_loads_no_heavy_library() -> None:
    heavy = ("torch", "transformers", "datasets", "pandas")
    code = f"import sys, verl_data; print(*(name for name in {heavy} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
