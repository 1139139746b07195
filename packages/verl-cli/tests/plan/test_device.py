"""The device is found without torch."""

from pathlib import Path

import pytest
from verl_cli.plan.device import Gpu, find_device, first_visible, parse_smi

SMI = """0, GPU-aaaa-1111, NVIDIA H200, 143771, 1024
1, GPU-bbbb-2222, NVIDIA H200, 143771, [N/A]
"""
MIB = 1 << 20


def test_lines_of_nvidia_smi() -> None:
    first, second = parse_smi(SMI)
    assert first == Gpu("0", "GPU-aaaa-1111", "NVIDIA H200", 143771 * MIB, 1024 * MIB)
    assert second.used_bytes is None
    assert parse_smi("No devices were found\n") == []


@pytest.mark.parametrize(
    ("visible", "index"),
    [(None, "0"), ("1,0", "1"), ("GPU-bbbb", "1"), ("7", None), ("", None), ("NoDevFiles", None), ("-1", None)],
)
def test_the_first_visible_gpu(visible: str | None, index: str | None) -> None:
    """Bug bank F14: identifiers stay text, and a list may name no device."""
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = first_visible(parse_smi(SMI), environ)
    assert (found.index if found else None) == index


def test_a_slice_has_no_known_memory() -> None:
    found = first_visible(parse_smi(SMI), {"CUDA_VISIBLE_DEVICES": "MIG-1234"})
    assert found is not None and found.memory_bytes is None


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An nvidia-smi that says what `SMI` says, and nothing else on the PATH."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '%s' '{SMI}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return program


def test_a_gpu_is_taken_where_there_is_one(smi: Path) -> None:
    device = find_device(None)
    # This torch may be built without CUDA; then the GPU is of no use, and the plan says so.
    assert (device.kind, device.name) in {("cuda", "NVIDIA H200"), ("cpu", "CPU")}
    assert device.kind == "cuda" or "without CUDA" in device.why
    assert find_device("cpu").kind == "cpu"


def test_no_gpu_means_the_cpu_and_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    device = find_device(None)
    assert (device.kind, device.problem) == ("cpu", None)
    assert device.memory_bytes is not None and device.memory_bytes > 100 * MIB
    assert "nvidia-smi finds no GPU" in device.why


def test_a_gpu_that_is_asked_for_and_absent_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    device = find_device("cuda")
    assert device.kind == "cuda"
    assert device.problem is not None and "Set trainer.device=cpu" in device.problem
