"""Devices, cores and placement: bug bank F11, F12 and F14."""

import itertools
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_cli.system.cgroup import CgroupLimits, read_cgroup_limits
from verl_cli.system.resources import CpuShare, cpu_limit, cpu_share, unplaceable, visible_devices

# --- F14: CUDA_VISIBLE_DEVICES is not a list of integers


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("NoDevFiles", []),
        ("", []),
        ("0,1", ["0", "1"]),
        ("GPU-8f2a", ["GPU-8f2a"]),
        (None, None),
        (" 3 , 1 ", ["3", "1"]),
        ("GPU-8f2a,GPU-91bc", ["GPU-8f2a", "GPU-91bc"]),
        ("MIG-a1b2,MIG-c3d4", ["MIG-a1b2", "MIG-c3d4"]),
        ("MIG-GPU-8f2a/1/0", ["MIG-GPU-8f2a/1/0"]),
        ("-1", []),
        ("0,-1,1", ["0"]),
        ("1,GPU-8f2a", ["1"]),
        ("GPU-8f2a,1", ["GPU-8f2a"]),
        ("0,,1", ["0"]),
        ("2,2", []),
        ("none", []),
    ],
)
def test_f14_visible_devices_stay_text(text: str | None, devices: list[str] | None) -> None:
    """F14: identifiers stay text; what names no device ends the list, as in CUDA; unset is not the same as empty."""
    assert visible_devices({} if text is None else {"CUDA_VISIBLE_DEVICES": text}) == devices


@given(st.text())
def test_f14_no_text_crashes(text: str) -> None:
    """F14: whatever a scheduler writes there, the answer is a list of entries of that text, each once."""
    devices = visible_devices({"CUDA_VISIBLE_DEVICES": text})
    assert devices is not None
    entries = [entry.strip() for entry in text.split(",")]
    assert devices == entries[: len(devices)] and len(set(devices)) == len(devices)


# --- F11: Ray uses all host cores under Slurm


@pytest.mark.parametrize(
    ("environ", "explicit", "cores"),
    [
        ({"SLURM_CPUS_PER_TASK": "4"}, None, 4),
        ({"SLURM_CPUS_PER_TASK": "4"}, 8, 8),
        ({}, None, None),
        ({}, 8, 8),
        ({"SLURM_CPUS_ON_NODE": "32"}, None, 32),
        ({"SLURM_CPUS_PER_TASK": "4", "SLURM_CPUS_ON_NODE": "32"}, None, 4),
        ({"SLURM_CPUS_PER_TASK": "", "SLURM_CPUS_ON_NODE": "32"}, None, 32),
    ],
)
def test_f11_cpu_limit(environ: dict[str, str], explicit: int | None, cores: int | None) -> None:
    """F11: an explicit number wins, then Slurm's allotment; without Slurm the choice is Ray's."""
    assert cpu_limit(environ, explicit=explicit) == cores


@pytest.mark.parametrize("text", ["many", "0", "-4", "4(x2)", "²"])
def test_f11_an_allotment_that_is_no_number_is_named(text: str) -> None:
    """F11: never silently all cores of the host."""
    with pytest.raises(ValueError, match=r"SLURM_CPUS_PER_TASK=.* is not a number of CPU cores"):
        cpu_limit({"SLURM_CPUS_PER_TASK": text})


def test_f11_no_cores_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one CPU core"):
        cpu_limit({}, explicit=0)


@pytest.mark.parametrize(
    ("share", "cores"),
    [
        (CpuShare(128, 128), 128),
        (CpuShare(128, 8), 8),
        (CpuShare(128, 128, 2.5), 2),
        (CpuShare(128, 4, 16.0), 4),
        (CpuShare(128, 128, 0.5), 1),
    ],
)
def test_usable_cores_are_whole_and_at_least_one(share: CpuShare, cores: int) -> None:
    assert share.cores == cores


def test_this_process_has_cores() -> None:
    share = cpu_share()
    assert 1 <= share.cores <= share.affinity <= share.host


# --- control groups


def tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_version_2_takes_the_tightest_of_all_groups_around(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slurm/job_7/step_0\n",
            "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
            "sys/fs/cgroup/slurm/cpu.max": "max 100000\n",
            "sys/fs/cgroup/slurm/job_7/cpu.max": "400000 100000\n",
            "sys/fs/cgroup/slurm/job_7/step_0/cpu.max": "800000 100000\n",
            "sys/fs/cgroup/slurm/memory.max": "8589934592\n",
            "sys/fs/cgroup/slurm/job_7/memory.max": "max\n",
        },
    )
    assert read_cgroup_limits(root) == CgroupLimits(4.0, 8589934592)


def test_version_1_beside_version_2(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/box\n4:cpu,cpuacct:/box\n1:name=systemd:/box\n0::/\n",
            "proc/self/mountinfo": (
                "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
                "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
                "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
            ),
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n",
        },
    )
    assert read_cgroup_limits(root) == CgroupLimits(1.5, 1073741824)


@pytest.mark.parametrize(
    ("shown", "path"), [("/docker/abc", "/docker/abc"), ("/", "/../../outside"), ("/docker/abc", "/elsewhere")]
)
def test_a_container_sees_its_own_group_at_the_mount(tmp_path: Path, shown: str, path: str) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": f"0::{path}\n",
            "proc/self/mountinfo": f"30 23 0:26 {shown} /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
            "sys/fs/cgroup/cpu.max": "200000 100000\n",
        },
    )
    assert read_cgroup_limits(root) == CgroupLimits(2.0, None)


def test_a_system_without_control_groups_has_no_limits(tmp_path: Path) -> None:
    assert read_cgroup_limits(tmp_path) == CgroupLimits()
    assert read_cgroup_limits() is not None


# --- F12: a placement group that can never be satisfied


def test_f12_names_the_resource_the_need_and_the_largest_node() -> None:
    """F12: GPU 6, CPU 60 on nodes of GPU 8, CPU 32, however many there are."""
    nodes = [{"GPU": 8, "CPU": 32}] * 4
    [problem] = unplaceable([{"GPU": 6, "CPU": 60}], nodes)
    assert str(problem) == "The bundle needs CPU 60, and the largest node has 32."
    assert problem.bundles == (0,)


def test_f12_equal_bundles_are_named_once() -> None:
    """F12: eight ranks that are too large are one problem."""
    [problem] = unplaceable([{"GPU": 1, "CPU": 40}] * 8, [{"GPU": 8, "CPU": 32}])
    assert problem.bundles == tuple(range(8))
    assert str(problem) == "8 bundles (0, 1, 2, 3, ...) need CPU 40, and the largest node has 32."


def test_f12_every_resource_that_is_short_is_named() -> None:
    """F12: a missing kind of resource counts as 0."""
    [problem] = unplaceable([{"GPU": 9, "TPU": 1, "CPU": 1}], [{"GPU": 8, "CPU": 32}])
    assert "GPU 9, and the largest node has 8" in str(problem)
    assert "TPU 1, and the largest node has 0" in str(problem)
    assert "CPU" not in str(problem)


def test_f12_resources_of_different_nodes_do_not_add_up() -> None:
    """F12: GPUs here and cores there do not make one node."""
    [problem] = unplaceable([{"GPU": 1, "CPU": 64}], [{"GPU": 8, "CPU": 32}, {"CPU": 128}])
    assert str(problem) == (
        "The bundle needs CPU 64, GPU 1 on one node, and no node has all of them: {CPU 32, GPU 8}, {CPU 128}."
    )


def test_f12_together_they_need_more_than_there_is() -> None:
    """F12: each fits alone."""
    [problem] = unplaceable([{"GPU": 4}] * 5, [{"GPU": 8}, {"GPU": 8}])
    assert problem.bundles == (4,)
    assert str(problem) == (
        "Bundle 4 of 5 finds no place: together all need GPU 20, and all nodes together have 16 (the largest 8)."
    )


def test_f12_totals_are_not_enough() -> None:
    """F12: 3 + 3 + 3 GPUs are 9 of 10, and two nodes of 5 hold only two bundles."""
    [problem] = unplaceable([{"GPU": 3}] * 3, [{"GPU": 5}, {"GPU": 5}])
    assert problem.bundles == (2,)
    assert "no node has GPU 3 left beside the others" in str(problem)


def test_f12_no_node_at_all() -> None:
    """F12: a cluster that is empty."""
    assert "there is no node" in str(unplaceable([{"GPU": 1}], [])[0])
    assert unplaceable([{}], []) == []


def test_f12_shares_of_a_gpu_add_up_exactly() -> None:
    """F12: ten tenths are one, and rounding of fractions plays no part."""
    assert unplaceable([{"GPU": 0.1}] * 10, [{"GPU": 1}]) == []
    assert unplaceable([{"GPU": 0.1}] * 11, [{"GPU": 1}]) != []


@pytest.mark.parametrize("amount", [-1, float("nan"), float("inf")])
def test_f12_amounts_are_checked(amount: float) -> None:
    """F12: an amount that is none is a mistake of the caller."""
    with pytest.raises(ValueError, match="The amount of GPU"):
        unplaceable([{"GPU": amount}], [{"GPU": 1}])


AMOUNTS = st.dictionaries(st.sampled_from(["GPU", "CPU"]), st.integers(0, 5), max_size=2)


def placement_exists(bundles: Sequence[Mapping[str, float]], nodes: Sequence[Mapping[str, float]]) -> bool:
    """By trying every assignment."""
    for places in itertools.product(range(len(nodes)), repeat=len(bundles)):
        if all(
            sum(bundle.get(name, 0) for bundle, place in zip(bundles, places, strict=True) if place == index)
            <= node.get(name, 0)
            for index, node in enumerate(nodes)
            for name in ("GPU", "CPU")
        ):
            return True
    return all(not any(bundle.values()) for bundle in bundles)


@settings(deadline=None)
@given(st.lists(AMOUNTS, max_size=5), st.lists(AMOUNTS, max_size=3))
def test_f12_what_cannot_be_placed_is_never_accepted(
    bundles: list[dict[str, int]], nodes: list[dict[str, int]]
) -> None:
    """F12: an empty list of problems means that a placement exists; one bundle is judged exactly."""
    problems = unplaceable(bundles, nodes)
    if not problems:
        assert placement_exists(bundles, nodes)
    if len(bundles) == 1:
        assert bool(problems) != placement_exists(bundles, nodes)
    assert all(str(problem).endswith(".") for problem in problems)


@settings(deadline=None)
@given(AMOUNTS.filter(lambda need: any(need.values())), st.integers(1, 12), st.lists(AMOUNTS, min_size=1, max_size=4))
def test_f12_equal_bundles_are_judged_exactly(need: dict[str, int], count: int, nodes: list[dict[str, int]]) -> None:
    """F12: a node holds as many as its scarcest resource allows."""
    room = sum(min(node.get(name, 0) // units for name, units in need.items() if units) for node in nodes)
    homeless = {position for problem in unplaceable([need] * count, nodes) for position in problem.bundles}
    assert len(homeless) == max(0, count - room)


@settings(deadline=None)
@given(st.lists(AMOUNTS, max_size=6), st.lists(AMOUNTS, max_size=3), st.randoms(use_true_random=False))
def test_f12_order_does_not_matter_and_a_roomy_node_settles_it(
    bundles: list[dict[str, int]], nodes: list[dict[str, int]], shuffler: random.Random
) -> None:
    """F12: the verdict is one of the request and the cluster, not of the order in which bundles are listed."""
    mixed = list(bundles)
    shuffler.shuffle(mixed)
    assert bool(unplaceable(mixed, nodes)) == bool(unplaceable(bundles, nodes))
    assert unplaceable(bundles, [*nodes, {"GPU": 30, "CPU": 30}]) == []
