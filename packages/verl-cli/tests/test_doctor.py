"""Looking at a machine: this one, trees of files that stand for others, and `verl-cli doctor` as a process."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import verl_cli
from verl_cli.doctor import gather_facts, judge
from verl_cli.doctor.checks.ray_sessions import judge_processes, judge_sessions
from verl_cli.doctor.facts import RayProcess, Setting
from verl_cli.doctor.facts.deadline import ask, within
from verl_cli.doctor.facts.deep import gather_deep
from verl_cli.doctor.facts.gpus import Gpu, gather_gpus
from verl_cli.doctor.facts.network import gather_network
from verl_cli.doctor.facts.packages import gather_packages
from verl_cli.doctor.facts.ray_sessions import gather_ray
from verl_cli.doctor.facts.storage import gather_storage, look_at

#: A nvidia-smi of two GPUs, one of them in use; it answers as the driver's own does, `[N/A]` included.
NVIDIA_SMI = """#!/bin/sh
case "$1" in
--query-gpu=index,uuid,memory.total,memory.used,driver_version,mig*)
  echo "0, GPU-aa00, 81559, 40321, 550.54.15, Disabled, Enabled, 0, 8.0, NVIDIA A100-SXM4-80GB"
  echo "1, GPU-bb11, 81559, 4, 550.54.15, [N/A], [N/A], [N/A], 8.0, NVIDIA A100-SXM4-80GB" ;;
--query-compute-apps=*) echo "GPU-aa00, {pid}, 40310, /usr/bin/python3, with a comma" ;;
*) exit 64 ;;
esac
"""
OLD_NVIDIA_SMI = """#!/bin/sh
case "$1" in
*mig.mode*) echo 'Field "mig.mode.current" is not a valid field to query.'; exit 2 ;;
--query-gpu=*) echo "0, GPU-aa00, 16160, 0, 418.87.00, Tesla V100" ;;
esac
"""
BROKEN_NVIDIA_SMI = "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n"
SESSION = "session_2026-11-29_21-13-00_123456_77"


def program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(text)
    file.chmod(0o755)
    return file


def tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def path_with(folder: Path) -> dict[str, str]:
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.fixture
def bystander() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that must be alive in the end."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    assert process.poll() is None
    process.kill()
    process.wait()


# --- this machine


def test_this_machine_can_be_looked_at() -> None:
    facts = gather_facts()
    findings = judge(facts)
    assert facts.packages.distributions["verl-cli"].version == verl_cli.__version__
    assert facts.packages.torch is not None
    assert facts.packages.torch.version.startswith(facts.packages.distributions["torch"].version.partition("+")[0])
    assert facts.packages.verl_is_ours
    assert facts.host.cpu.cores >= 1
    assert {place.role for place in facts.storage} >= {"run directory", "temporary files", "Hugging Face cache"}
    assert {finding.name for finding in findings if finding.state == "problem"}.isdisjoint(
        {"python", "verl packages", "requirements", "torch", "the name verl"}
    )


def test_an_empty_machine_degrades(tmp_path: Path) -> None:
    """No proc, no sys, no commands, no home: everything is said to be unknown or absent."""
    facts = gather_facts({"PATH": str(tmp_path), "HOME": str(tmp_path)}, root=tmp_path)
    assert facts.gpus.gpus == ()
    assert facts.host.memory_bytes is None
    assert facts.host.shared_memory is None
    assert facts.network.adapters == {}
    assert facts.ray.processes is None
    assert [finding for finding in judge(facts) if "Traceback" in finding.seen] == []


# --- GPUs


def test_nvidia_smi_is_read(tmp_path: Path, bystander: "subprocess.Popen[bytes]") -> None:
    program(tmp_path / "bin", "nvidia-smi", NVIDIA_SMI.replace("{pid}", str(bystander.pid)))
    facts = gather_gpus(path_with(tmp_path / "bin"))
    name = "NVIDIA A100-SXM4-80GB"
    assert facts.gpus == (
        Gpu(0, "GPU-aa00", name, 81559, 40321, False, True, 0, (8, 0)),
        Gpu(1, "GPU-bb11", name, 81559, 4, None, None, None, (8, 0)),
    )
    assert facts.driver == "550.54.15"
    [process] = facts.processes
    assert (process.pid, process.gpu_uuid, process.used_mib) == (bystander.pid, "GPU-aa00", 40310)
    assert process.name == "/usr/bin/python3, with a comma"
    assert (process.user is not None) == Path("/proc/self").exists()


def test_an_old_driver_is_asked_for_what_it_knows(tmp_path: Path) -> None:
    program(tmp_path / "bin", "nvidia-smi", OLD_NVIDIA_SMI)
    facts = gather_gpus(path_with(tmp_path / "bin"))
    assert facts.gpus == (Gpu(0, "GPU-aa00", "Tesla V100", 16160, 0),)
    assert facts.driver == "418.87.00"


def test_a_broken_driver_is_told(tmp_path: Path) -> None:
    root = tree(tmp_path, {"dev/nvidia0": "", "proc/driver/nvidia/version": "NVRM version: NVIDIA  580.65.06  R\n"})
    program(tmp_path / "bin", "nvidia-smi", BROKEN_NVIDIA_SMI)
    facts = gather_gpus(path_with(tmp_path / "bin"), root)
    assert facts.failure == (
        "nvidia-smi failed with exit code 18: Failed to initialize NVML: Driver/library version mismatch"
    )
    assert facts.driver == "580.65.06"
    assert facts.device_files == ("/dev/nvidia0",)


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    """The pipe of a child that lives on would be waited for."""
    marker = tmp_path / "child"
    hung = program(tmp_path, "nvidia-smi", f"#!/bin/sh\nsleep 600 &\necho $! > {marker}\nwait\n")
    answer = ask([str(hung)], environ=os.environ, seconds=1)
    assert answer.failure == "nvidia-smi did not answer within 1 s"
    child = int(marker.read_text())
    for _ in range(100):
        if _is_gone(child):
            break
        time.sleep(0.1)
    assert _is_gone(child)


def _is_gone(pid: int) -> bool:
    """Ended; in a container nobody may collect it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_question_without_an_answer_has_an_end() -> None:
    assert within(0.05, lambda: time.sleep(30)) is None
    assert within(10, lambda: 7) == 7


def test_a_command_that_cannot_start(tmp_path: Path) -> None:
    file = tmp_path / "nvidia-smi"
    file.write_text("not a program")
    assert "cannot be started" in (ask([str(file)], environ=os.environ, seconds=1).failure or "")


# --- network


def test_interfaces_adapters_and_nccls_files(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "sys/class/net/eth0/operstate": "up\n",
            "sys/class/net/bonding_masters": "\n",
            "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
            "sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n",
            "dev/infiniband/uverbs0": "",
            "etc/nccl.conf": "# everywhere\nNCCL_DEBUG=WARN\nNCCL_SOCKET_IFNAME==eth0\n",
            "home/.nccl.conf": "NCCL_DEBUG=INFO\n",
        },
    )
    facts = gather_network({"HOME": str(root / "home"), "NCCL_IB_HCA": "mlx5", "OTHER": "1"}, root)
    assert facts.interfaces == ("eth0",)
    assert facts.adapters == {"mlx5_0": {1: True}, "mlx5_1": {1: False}}
    assert facts.has_verbs
    assert facts.nccl == {
        "NCCL_DEBUG": Setting("INFO", str(root / "home/.nccl.conf")),
        "NCCL_SOCKET_IFNAME": Setting("=eth0", str(root / "etc/nccl.conf")),
        "NCCL_IB_HCA": Setting("mlx5"),
    }


# --- Ray


@pytest.fixture
def raylet() -> Iterator["subprocess.Popen[bytes]"]:
    """A process with the name and the arguments of a raylet."""
    process = subprocess.Popen(
        ["/opt/ray/raylet/raylet", "-c", "read line", "--", f"--session_dir=/tmp/ray/{SESSION}"],
        executable="/bin/sh",
        stdin=subprocess.PIPE,
    )
    yield process
    assert process.poll() is None, "the doctor ended a process"
    process.communicate()


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="reads /proc")
def test_a_living_session_and_a_dead_one(tmp_path: Path, raylet: "subprocess.Popen[bytes]") -> None:
    dead = SESSION.replace("_77", "_78")
    root = tree(
        tmp_path,
        {f"tmp/ray/{name}/logs/raylet.out": "x" * 10_000 for name in (SESSION, dead)} | {"tmp/ray/other/file": ""},
    )
    (root / "tmp/ray/session_latest").symlink_to(dead)
    (root / "proc").symlink_to("/proc")
    for folder, _, names in os.walk(root / "tmp/ray", topdown=False):
        for name in (".", *names):
            os.utime(Path(folder, name), (1, 1))
    facts = gather_ray({}, root)
    assert facts.processes is not None
    assert RayProcess(raylet.pid, facts.user, SESSION) in facts.processes
    assert {session.name for session in facts.sessions} == {SESSION, dead}
    assert all(10_000 <= session.size_bytes < 100_000 and session.complete for session in facts.sessions)
    assert all(session.idle_seconds > 600 for session in facts.sessions)
    told = judge_sessions(facts)
    assert told.state == "note"
    assert told.remedy is not None
    assert dead in told.remedy
    assert SESSION not in told.remedy
    assert f"pid {raylet.pid}" in judge_processes(facts).seen
    assert (root / "tmp/ray" / dead / "logs/raylet.out").exists()


def test_ray_address_is_tried(tmp_path: Path) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        (tmp_path / "tmp/ray").mkdir(parents=True)
        (tmp_path / "tmp/ray/ray_current_cluster").write_text(f"127.0.0.1:{port}\n")
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}", f"http://127.0.0.1:{port}"):
            facts = gather_ray({"RAY_ADDRESS": address}, tmp_path)
            assert facts.reachable is True
        assert facts.last_reachable is True
    assert gather_ray({"RAY_ADDRESS": f"127.0.0.1:{port}"}, tmp_path).reachable is False
    assert gather_ray({"RAY_ADDRESS": "127.0.0.1:port"}, tmp_path).reachable is False
    assert gather_ray({"RAY_ADDRESS": "auto"}, tmp_path).reachable is None
    assert gather_ray({}, tmp_path).last_reachable is False


def test_rays_folder_can_be_moved(tmp_path: Path) -> None:
    (tmp_path / "scratch/ray" / SESSION).mkdir(parents=True)
    facts = gather_ray({"RAY_TMPDIR": "/scratch"}, tmp_path)
    assert facts.folder == "/scratch/ray"
    assert [session.name for session in facts.sessions] == [SESSION]


# --- storage


def test_folders_follow_the_environment_and_nothing_stays(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    environ = {"HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf"), "TRITON_CACHE_DIR": str(tmp_path / "a/b")}
    places = {place.role: place for place in gather_storage(environ, tmp_path)}
    assert places["run directory"].path == str(tmp_path)
    assert places["Hugging Face cache"].path == str(tmp_path / "hf/hub")
    assert not places["Triton cache"].exists
    assert all(place.failure is None and place.free_bytes for place in places.values())
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["hf"]


def test_a_file_in_place_of_a_folder_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    assert "Not a directory" in (look_at("Triton cache", tmp_path / "cache").failure or "")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder where not even root may write")
def test_a_folder_that_cannot_be_written() -> None:
    assert look_at("Triton cache", Path("/proc/self")).failure is not None


# --- packages


def test_a_distribution_named_verl_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, {"verl-0.9.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: verl\nVersion: 0.9.1\n"})
    monkeypatch.syspath_prepend(tmp_path)
    assert gather_packages(tmp_path).original == ("0.9.1", str(tmp_path))


def test_extras_and_markers_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def metadata(name: str, version: str, *requires: str) -> dict[str, str]:
        lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *(f"Requires-Dist: {r}" for r in requires)]
        return {f"{name}-{version}.dist-info/METADATA": "\n".join(lines) + "\n"}

    tree(
        tmp_path,
        metadata("ray", "2.60.0", "doctor_test_a[fast]>=1", "nothing; python_version < '3'", "never; extra == 'tune'")
        | metadata("doctor_test_a", "1.5", "doctor-test-b==2; extra == 'fast'", "no; extra == 'slow'", "not a valid (")
        | {"vllm-0.33.0.dist-info/RECORD": ""},
    )
    monkeypatch.syspath_prepend(tmp_path)
    there = gather_packages(tmp_path).distributions
    assert there["ray"].requires == ("doctor_test_a[fast]>=1",)
    assert there["doctor-test-a"].requires == ("doctor-test-b==2",)
    assert "doctor-test-b" not in there
    assert "vllm" not in there


# --- torch at work


def test_torch_is_tried_in_a_process_of_its_own() -> None:
    deep = gather_deep({**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert deep.failure is None
    assert deep.version is not None
    assert deep.devices == ()


def test_a_torch_that_breaks_says_how(tmp_path: Path) -> None:
    program(tmp_path, "torch.py", "raise ImportError('libcudart.so.13: cannot open shared object file')\n")
    deep = gather_deep({**os.environ, "PYTHONPATH": str(tmp_path)})
    assert deep.failure == "ImportError: libcudart.so.13: cannot open shared object file"


# --- the command


def doctor(*arguments: str, cwd: Path, **environ: str) -> tuple[int, str]:
    run = subprocess.run(
        [sys.executable, "-m", "verl_cli.main", "doctor", *arguments],
        cwd=cwd,
        env={**os.environ, "HOME": str(cwd), "TMPDIR": str(cwd), **environ},
        capture_output=True,
        check=False,
    )
    assert run.stderr == b""
    return run.returncode, run.stdout.decode()


def findings(text: str) -> dict[str, dict[str, Any]]:
    told = json.loads(text)
    assert all(set(finding) == {"name", "state", "seen", "remedy"} for finding in told)
    assert all((finding["state"] == "ok") == (finding["remedy"] is None) for finding in told)
    return {finding["name"]: finding for finding in told}


@pytest.mark.alone
def test_the_command_prints_json_and_its_exit_code_is_the_verdict(
    tmp_path: Path, bystander: "subprocess.Popen[bytes]"
) -> None:
    program(tmp_path / "bin", "nvidia-smi", NVIDIA_SMI.replace("{pid}", str(bystander.pid)))
    folder = tmp_path / "work"
    folder.mkdir()
    code, text = doctor("--json", cwd=folder, **path_with(tmp_path / "bin"), GLOO_SOCKET_IFNAME="nowhere0")
    told = findings(text)
    assert code == 1
    assert told["network interfaces"]["state"] == "problem"
    assert told["usable GPUs"]["seen"].startswith("2 of 2")
    assert f"pid {bystander.pid} (python3" in told["GPU memory in use"]["seen"]
    assert list(folder.iterdir()) == []


def test_the_command_succeeds_where_nothing_is_wrong(tmp_path: Path) -> None:
    """What this machine itself may lack (room, shared memory) is not the test's to say: those names are left out."""
    code, text = doctor("--json", cwd=tmp_path, PYTHONUTF8="1")
    told = findings(text)
    problems = {name for name, finding in told.items() if finding["state"] == "problem"}
    assert code == (1 if problems else 0)
    assert problems <= {"shared memory", "GPU driver", "GPUs"} | {name for name in told if name.startswith("disk")}
    assert list(tmp_path.iterdir()) == []


def test_the_command_names_the_original(tmp_path: Path) -> None:
    site, folder = tmp_path / "site", tmp_path / "work"
    tree(site, {"verl-0.9.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: verl\nVersion: 0.9.1\n"})
    folder.mkdir()
    code, text = doctor(cwd=folder, PYTHONPATH=str(site))
    assert code == 1
    lines = text.splitlines()
    line = next(line for line in lines if "the name verl" in line)
    assert line.startswith("problem")
    assert "0.9.1" in line
    assert "-> Remove both (`pip uninstall verl verl-cli`)" in lines[lines.index(line) + 1]
    assert "the name verl" in lines[-1]


def test_another_verl_in_the_working_folder_is_named(tmp_path: Path) -> None:
    """`python -m` looks in the working folder first, and so does this command when it is started like that."""
    tree(tmp_path, {"verl/__init__.py": ""})
    code, text = doctor("--json", cwd=tmp_path)
    told = findings(text)
    assert code == 1
    assert told["the name verl"]["seen"].startswith(f"`import verl` takes {tmp_path / 'verl'}")


def test_the_command_survives_a_terminal_that_knows_only_ascii(tmp_path: Path) -> None:
    folder = tmp_path / "学习"
    folder.mkdir()
    code, text = doctor(cwd=folder, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert code == 1
    assert "output ascii" in text
    assert "\\u5b66\\u4e60" in text


def test_the_command_imports_no_torch(tmp_path: Path) -> None:
    program(tmp_path, "torch.py", "raise SystemExit('imported')\n")
    code, text = doctor("--json", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    told = findings(text)
    assert code == 1
    assert told["torch"]["state"] == "problem"


def _heed_interrupts() -> None:
    """A shell that runs tests in the background lets its children ignore the signal."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_it_with_what_it_started(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    program(tmp_path / "bin", "nvidia-smi", f"#!/bin/sh\necho $$ > {asked}.new\nmv {asked}.new {asked}\nsleep 600\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "verl_cli.main", "doctor"],
        env={**os.environ, **path_with(tmp_path / "bin")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=_heed_interrupts,
    )
    while not asked.exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate()
    assert process.returncode != 0
    assert b"Traceback" not in complaint
    assert _is_gone(int(asked.read_text()))


def test_odd_addresses_and_folders_are_findings_at_most(tmp_path: Path) -> None:
    code, _ = doctor(
        cwd=tmp_path,
        HOME="",
        RAY_ADDRESS="http://[broken",
        HF_ENDPOINT="http://[broken",
        WANDB_BASE_URL="http://[broken",
        https_proxy="http://[broken",
        HF_HOME="~/hub",
        TRITON_CACHE_DIR="~nobody-of-that-name/cache",
        NCCL_SOCKET_IFNAME="",
        CUDA_VISIBLE_DEVICES="",
        SLURM_CPUS_PER_TASK="4(x2)",
    )
    assert code == 1
