"""What the user is told when something goes wrong: real failures wherever a process can have them."""

import errno
import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from endings import ending, process, train
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.api import CheckpointException
from verl_algos import advantages
from verl_algos.errors import NonFiniteError
from verl_algos.rewards import RewardError, RewardLoadError
from verl_cli.commands.guard import guarded
from verl_cli.config import ConfigError, RunConfig, resolve
from verl_cli.controller import LocalController, RoleSpec
from verl_cli.errors import InterruptedRunError, UserError
from verl_cli.failures import Place, defect, during, explain, place_of
from verl_cli.phases import Phase, Step, run_phases
from verl_data import DataError, PackedBatch
from verl_data.files import atomic_file
from verl_engine.errors import CheckpointError, EngineError
from verl_rollout import NonFiniteLogitsError, RolloutError

Overrides = Callable[..., list[str]]


def raised(run: Callable[[], object]) -> BaseException:
    """What `run` raises."""
    with pytest.raises(BaseException) as error:
        run()
    return error.value


def told(error: BaseException, place: Place | None = None) -> str:
    """The one paragraph about a known failure."""
    paragraph = explain(error, place)
    assert paragraph is not None
    assert "\n" not in paragraph
    assert paragraph.endswith(".")
    return paragraph


def in_phase(name: str, work: Callable[[], object], config: RunConfig | None = None, step: int = 3) -> str:
    """The paragraph about what `work` raises in a phase of a step."""
    batch = PackedBatch.from_sequences({"input_ids": [[1]]})
    number = Step(number=step, epoch=0, prompts=[], batch=batch)
    error = raised(lambda: run_phases([Phase(name, lambda _: (work(), None)[1])], number))
    return told(error, None if config is None else Place(name, step, config))


# Where it happened


def test_the_phase_and_step_of_whatever_a_phase_raises() -> None:
    def fail() -> NoReturn:
        raise ZeroDivisionError

    step = Step(number=7, epoch=0, prompts=[])
    for phase in (Phase("adv", lambda _: fail()), Phase("adv", lambda _: None, writes=("returns",))):
        place = place_of(raised(lambda phase=phase: run_phases([phase], step)))  # type: ignore[misc]
        assert (place.phase, place.step, place.role) == ("adv", 7, None)


def test_the_innermost_place_stays_and_is_found_behind_another_exception() -> None:
    def work() -> None:
        with during("testing", 4):
            try:
                with during("gen"):
                    raise KeyError("x")
            except KeyError as error:
                raise UserError("y") from error

    assert place_of(raised(work)) == Place("gen", 4)


def test_the_role_that_could_not_be_started(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(error: Exception) -> NoReturn:
        raise error

    for error, said in (
        (EngineError("No such model. Choose another."), "The critic could not be started. No such model."),
        (RolloutError("No such model."), "The critic could not be started. No such model."),
        (MemoryError(), "ran out while the critic was being started: more was asked for than there is. Choose a small"),
    ):
        roles = {"actor": RoleSpec(dict, {}), "critic": RoleSpec(broken, {"error": error})}
        assert said in ending(lambda roles=roles: LocalController().start(roles), capsys)  # type: ignore[misc]
    roles = {"critic": RoleSpec(broken, {"error": ZeroDivisionError("division")})}
    with pytest.raises(ZeroDivisionError) as unknown:
        guarded(lambda: (LocalController().start(roles), None)[1])
    (note,) = unknown.value.__notes__
    assert note.startswith(
        "error: An unexpected error while the critic was being started: ZeroDivisionError: division."
    )
    assert "raise error" in note


# Memory


def test_torch_on_a_cpu() -> None:
    message = in_phase("gen", lambda: torch.empty(1 << 50))
    assert "main memory" in message
    assert "in the phase gen (generating responses) of step 3: 4.0 PiB more was asked for." in message
    assert "actor_rollout_ref.rollout.max_num_seqs" in message


def test_numpy_and_python() -> None:
    assert "256. TiB more was asked for" in told(raised(lambda: np.empty(1 << 48, dtype=np.uint8)))
    assert "Use a smaller model" in told(MemoryError())
    assert "main memory" in told(OSError(errno.ENOMEM, "Cannot allocate memory"))


def test_a_process_that_may_have_no_more() -> None:
    """The event itself: a limit, as a cluster sets one, in a phase of a step."""
    done = process(
        "import resource, torch, numpy as np\n"
        "from verl_cli.phases import Phase, Step, run_phases\n"
        "def work(step):\n"
        "    now = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (now + 2**26, now + 2**26))\n"
        "    torch.zeros(2**28)\n"
        "guarded(lambda: run_phases([Phase('update_actor', work)], Step(number=2, epoch=0, prompts=[])))\n"
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "error: This machine's main memory (or the process's limit of it) ran out in the phase update_actor (the "
        "actor's update) of step 2: 1.0 GiB more was asked for. Lower "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
    )


CUDA_OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 1 has a total capacity of 79.11 GiB of which 1.20 GiB is "
    "free. Including non-PyTorch memory, this process has 77.89 GiB memory in use. Of the allocated memory 60.10 GiB "
    "is allocated by PyTorch, and 9.52 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory "
    "is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
ACTOR, REF = "actor_rollout_ref.actor", "actor_rollout_ref.ref"


@pytest.mark.parametrize(
    ("phase", "keys", "said"),
    [
        ("gen", {}, "Lower actor_rollout_ref.rollout.max_num_seqs (now 256)"),
        ("testing", {}, "or data.max_response_length (now 4)"),
        (
            "old_log_prob",
            {},
            f"Lower {ACTOR}.ppo_max_token_len_per_gpu (now 16384 tokens; 20, the longest sequence, is the least",
        ),
        (
            "update_actor",
            {"actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu": 4},
            "(now 4 sequences); the result does not change. actor_rollout_ref.model.enable_gradient_checkpointing=true",
        ),
        (
            "update_actor",
            {"actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu": 1},
            f"one sequence already ({ACTOR}.ppo_micro_batch_size_per_gpu=1): lower data.max_response_length (now 4)",
        ),
        (
            "update_actor",
            {"actor_rollout_ref__actor__ppo_max_token_len_per_gpu": 20},
            f"at most already ({ACTOR}.ppo_max_token_len_per_gpu=20): lower data.max_response_length",
        ),
        (
            "ref",
            {"actor_rollout_ref__ref__log_prob_micro_batch_size_per_gpu": 8},
            f"Lower {REF}.log_prob_micro_batch_size_per_gpu (now 8 sequences)",
        ),
        ("ref", {}, f"Lower {REF}.log_prob_max_token_len_per_gpu (now 16384 tokens"),
        ("values", {}, "Lower critic.ppo_max_token_len_per_gpu (now 32768 tokens"),
        (
            "update_critic",
            {"critic__ppo_micro_batch_size_per_gpu": 2},
            "Lower critic.ppo_micro_batch_size_per_gpu (now 2 sequences)",
        ),
        ("reward", {}, "Lower data.train_batch_size (now 8) (prompts) or actor_rollout_ref.rollout.n (now 2)"),
        ("adv", {}, "data.train_batch_size"),
        ("save_checkpoint", {}, "The whole model is gathered in main memory"),
        ("start_actor", {}, "Choose a smaller model (actor_rollout_ref.model.path (now "),
        ("start_actor", {}, "actor_rollout_ref.model.enable_gradient_checkpointing=true"),
        ("start_critic", {}, "algorithm.adv_estimator=grpo"),
        ("start_ref", {}, "algorithm.kl_ctrl.kl_coef=0"),
        ("start_rollout", {}, "actor_rollout_ref.rollout.dtype=bfloat16"),
    ],
)
def test_the_key_that_needs_less_memory_in_that_phase(
    overrides: Overrides, phase: str, keys: dict[str, Any], said: str
) -> None:
    def work() -> NoReturn:
        raise torch.OutOfMemoryError(CUDA_OUT_OF_MEMORY)

    message = in_phase(phase, work, resolve(overrides(**keys)).config)
    assert "The GPU's memory ran out" in message
    assert "2.50 GiB more was asked for (GPU 1 has 79.11 GiB, 1.20 GiB of it free)." in message
    assert said in message
    assert "9.52 GiB lie in pieces" in message


def test_memory_that_runs_out_while_a_model_loads_is_not_a_broken_model() -> None:
    """verl_engine makes one kind of error of whatever transformers raises."""

    def load() -> None:
        with during("start_actor"):
            try:
                torch.empty(1 << 50)
            except RuntimeError as error:
                raise EngineError(f"The model m cannot be loaded: {error}. Give a whole folder.") from error

    message = told(raised(load))
    assert message.startswith("This machine's main memory")
    assert "while the actor was being started" in message


# Disk


def test_a_full_disk(overrides: Overrides, tmp_path: Path) -> None:
    def write() -> None:
        with open("/dev/full", "w") as file:  # noqa: PTH123
            file.write("x")

    place = Place("save_checkpoint", 5, resolve(overrides()).config)
    message = told(raised(write), place)
    assert message.startswith(
        "Disk full in the phase save_checkpoint (writing a checkpoint) of step 5: writing a file "
    )
    assert f"which holds {tmp_path}, has " in message
    assert "free of" in message
    assert "trainer.max_actor_ckpt_to_keep" in message
    named = told(OSError(errno.ENOSPC, "No space left on device", "/proc/nothing/there"))
    assert "writing /proc/nothing/there failed because no space is left." in named
    assert "The file system /proc, which holds /proc, has 0 bytes free of 0 bytes" in named
    assert "your disk quota is used up" in told(OSError(errno.EDQUOT, "Disk quota exceeded"))
    for text in (
        "I/O error: No space left on device (os error 28)",
        "PytorchStreamWriter failed writing file data/0",
        "[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598",
    ):
        assert told(RuntimeError(text)).startswith("Disk full: ")


def test_a_run_whose_checkpoint_does_not_fit(
    overrides: Overrides, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The event itself: no file of the process may be larger than 32 KiB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**15, hard))
    try:
        message = train(overrides(trainer__total_training_steps=1), capsys)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "global_step_1" in message
    assert f"which holds {tmp_path}" in message
    assert "free of" in message
    assert not list((tmp_path / "run").glob(".global_step*"))
    assert not (tmp_path / "run" / "error.log").exists()


def test_the_messages_of_our_packages_keep_what_they_tell(tmp_path: Path) -> None:
    def write() -> None:
        with atomic_file(tmp_path / "rows.parquet"):
            raise OSError(errno.ENOSPC, "No space left on device")

    message = told(raised(write))
    assert message.startswith(f"No room to write {tmp_path / 'rows.parquet'} (No space left on device). What was")
    assert f"which holds {tmp_path}, has" in message
    inner = OSError(errno.ENOSPC, "No space left on device")
    outer = CheckpointError("global_step_1/actor could not be written. Free space, then save again.")
    outer.__cause__ = CheckpointException("", {0: (inner, [])})  # type: ignore[dict-item]
    assert told(outer).startswith("global_step_1/actor could not be written. Free space, then save again. The file sys")


# Other limits of the system


def test_what_went_wrong_first_counts() -> None:
    def work() -> None:
        try:
            torch.empty(1 << 50)
        finally:
            raise KeyError("tidying up")

    def otherwise() -> None:
        try:
            torch.empty(1 << 50)
        except RuntimeError:
            raise UserError("Set a smaller size.") from None

    assert told(raised(work)).startswith("This machine's main memory")
    assert told(raised(otherwise)) == "Set a smaller size."


def test_too_many_open_files() -> None:
    done = process(
        "import resource\n"
        "def run():\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n"
        "    files = [open('/dev/null') for _ in range(40)]\n"
        "guarded(run)\n"
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: Too many files are open: ")
    assert "may hold 40 files open at once (ulimit -n)" in done.stderr


def test_files_and_permissions(tmp_path: Path) -> None:
    missing = told(raised(lambda: (tmp_path / "nothing").read_text()))
    assert f"{tmp_path / 'nothing'}: No such file or directory. There is nothing of that name: correct" in missing
    assert "It is a folder where a file is needed" in told(raised(lambda: tmp_path.read_text()))
    (tmp_path / "file").touch()
    denied = told(PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "file")))
    assert f"{tmp_path / 'file'}: Permission denied. {tmp_path / 'file'} belongs to user {os.getuid()} with" in denied
    assert "Change its permissions" in denied
    assert "Change its permissions" in told(raised(lambda: os.kill(1, 0)) if os.getuid() else PermissionError(1, "No"))
    assert "read-only" in told(OSError(errno.EROFS, "Read-only file system", "/x"))
    assert told(FileNotFoundError("a.parquet does not exist.")).startswith("a.parquet does not exist. Correct the path")


def test_connections() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    message = told(raised(lambda: socket.create_connection(address)))
    assert message.startswith("A connection failed: ConnectionRefusedError: [Errno 111] Connection refused.")
    assert "A connection failed" in told(socket.gaierror(-2, "Name or service not known"))
    reader, writer = os.pipe()
    os.close(reader)
    assert "A connection failed" in told(raised(lambda: os.write(writer, b"x")))
    os.close(writer)


# Accelerators


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.AcceleratorError("CUDA error: device-side assert triggered\nCUDA kernel errors might be"), "vocabulary"),
        (RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with"), "CUDA_LAUNCH_BLOCKING=1"),
        (RuntimeError("CUDA error: no kernel image is available for execution on the device"), "compute capability"),
        (RuntimeError("The NVIDIA driver on your system is too old (found version 11040)."), "driver is older"),
        (RuntimeError("CUDA driver version is insufficient for CUDA runtime version"), "update it"),
        (RuntimeError("No CUDA GPUs are available"), "CUDA_VISIBLE_DEVICES"),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), "use another GPU"),
        (RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable"), "Another process"),
        (torch.distributed.DistBackendError("NCCL error in: x.cpp:1, unhandled system error"), "NCCL_DEBUG=INFO"),
        (RuntimeError("CUDA error: unspecified"), "doctor"),
        (AssertionError("Torch not compiled with CUDA enabled"), "trainer.device=cpu"),
    ],
)
def test_what_cuda_reports(error: BaseException, said: str) -> None:
    message = told(error, Place("update_actor", 2))
    assert message.startswith("The GPU failed in the phase update_actor (the actor's update) of step 2: ")
    assert said in message
    assert "kernel errors might" not in message


@pytest.mark.parametrize("text", ["CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED when calling `cublas"])
def test_memory_of_a_gpu_in_other_words(text: str) -> None:
    assert told(RuntimeError(text)).startswith("The GPU's memory ran out")


# Numbers


def gae(*, token_rewards: float = 0.0, values: float = 0.0) -> Callable[[], object]:
    return lambda: advantages.gae(token_rewards=torch.tensor([[token_rewards]]), values=torch.tensor([[values]]))


def test_numbers_that_are_not_finite_name_phase_and_cause(overrides: Overrides) -> None:
    message = in_phase("adv", gae(values=float("nan")), resolve(overrides()).config)
    assert message.startswith("A number is not finite in the phase adv (advantages) of step 3: values holds 1 valid")
    assert "lower critic.optim.lr (now 0.001)" in message
    message = in_phase("adv", gae(token_rewards=float("inf")))
    assert "it is the KL term" in message
    assert "actor_rollout_ref.actor.optim.lr and go on" in message
    error = NonFiniteLogitsError("The logits are not finite. Go back to an earlier checkpoint.")
    assert told(error) == str(error)


# Our own messages


def test_messages_that_say_what_to_do_stay_as_they_are() -> None:
    for error in (
        UserError("A is wrong. Do B."),
        InterruptedRunError("Interrupted. Do B."),
        DataError("A is wrong. Do B."),
        EngineError("A is wrong. Do B."),
        RolloutError("A is wrong. Do B."),
        RewardError("A is wrong. Do B.", 0, "x"),
        RewardLoadError("A is wrong. Do B."),
    ):
        assert told(error) == str(error)
    assert told(DataError("The template refuses:\n   line 3,\n no role")) == "The template refuses: line 3, no role."
    assert explain(ConfigError("A.", "B.")) == "The configuration has 2 problems.\n\n1. A.\n\n2. B."
    assert told(RewardError("compute_score failed", 0, "x"), Place("reward", 1)) == "compute_score failed."


class BrokenError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def chained(outer: Exception, inner: Exception) -> Exception:
    outer.__cause__ = inner
    return outer


TEXT = st.text(max_size=30) | st.sampled_from(
    ["", "\n\n", "a\n\nb:\nc", "CUDA out of memory", "os error 28", "CUDA error", "tried to allocate 5 bytes", "a {b}"]
)
SYSTEM = st.builds(
    OSError,
    st.sampled_from([*errno.errorcode, -2, 99999]) | st.none(),
    TEXT | st.none(),
    TEXT | st.binary(max_size=3) | st.integers() | st.none(),
)
SINGLE = st.one_of(
    SYSTEM,
    st.builds(
        lambda kind, text: kind(text),
        st.sampled_from(
            [
                *(UserError, DataError, EngineError, RolloutError, RewardLoadError, RuntimeError, ValueError),
                *(MemoryError, torch.OutOfMemoryError, BrokenError, OSError, FileNotFoundError, AssertionError),
            ]
        ),
        TEXT,
    ),
    st.builds(lambda text, column: NonFiniteError(text, column), TEXT, TEXT),
)
FAILURES = SINGLE | st.builds(chained, SINGLE, SINGLE)


@settings(deadline=None, max_examples=300)
@given(
    error=FAILURES,
    phase=st.none()
    | st.sampled_from(["gen", "update_actor", "ref", "start_critic", "start_x", "save_checkpoint", "x"]),
    step=st.none() | st.integers(1),
)
def test_every_explanation_is_a_paragraph(error: Exception, phase: str | None, step: int | None) -> None:
    paragraph = explain(error, Place(phase, step))
    unknown = defect(error, Place(phase, step, log=Path("error.log")))
    for text in (unknown, *(paragraph or "").split("\n\n")):
        assert "\n" not in text
        assert text == "" or text.endswith((".", "?", "!"))  # a question asks what was meant
    if not isinstance(error, UserError):
        assert "\n" not in (paragraph or "")
    if isinstance(error, (OSError, MemoryError)):
        assert paragraph


def test_nothing_heavy_is_imported_for_an_explanation() -> None:
    done = process(
        "import sys\n"
        "def run(): open('/nothing/there')\n"
        "try: guarded(run)\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'transformers', 'verl_data', 'numpy') if name in sys.modules])\n"
    )
    assert done.stdout == "[]\n"
