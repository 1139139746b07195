"""One thread for torch, in tests and the processes they start: the tensors are tiny, and a second thread only waits."""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

# In importlib mode pytest puts no folder on the path: processes is for tests here only.
sys.path.insert(0, str(Path(__file__).parent))
