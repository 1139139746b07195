"""One thread for torch, in tests and the processes they start: the tensors are tiny, and a second thread only waits."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
