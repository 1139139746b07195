"""Is there room, and may a run write?"""

from collections.abc import Iterator, Sequence

from verl_cli.doctor.facts.storage import Place
from verl_cli.doctor.finding import Finding, note, ok, problem

GIB = 2**30
#: (a run fails soon, a run may fail later), in GiB free. A checkpoint with AdamW takes about 14 bytes a parameter.
_ROOM = {
    "run directory": (2, 20),
    "temporary files": (1, 5),
    "Hugging Face cache": (1, 20),
    "Triton cache": (0, 1),
    "Inductor cache": (0, 1),
}
_FEW_FILES = 0.01
#: How to move each elsewhere.
_ELSEWHERE = {
    "run directory": "give trainer.default_local_dir=DIR on another disk",
    "temporary files": "set TMPDIR to another folder",
    "Hugging Face cache": "set HF_HOME to another folder",
    "Triton cache": "set TRITON_CACHE_DIR to another folder",
    "Inductor cache": "set TORCHINDUCTOR_CACHE_DIR to another folder",
}


def judge_storage(places: Sequence[Place]) -> Iterator[Finding]:
    """One finding a folder."""
    for place in places:
        yield judge_place(place)


def judge_place(place: Place) -> Finding:
    """Whether something can be written there, and how much."""
    name, elsewhere = f"disk: {place.role}", _ELSEWHERE[place.role]
    fails_soon, may_fail = _ROOM[place.role]
    new = "" if place.exists else " (will be made)"
    if place.failure is not None:
        return problem(
            name, f"{place.path} cannot be written: {place.failure}", f"Change its permissions, or {elsewhere}."
        )
    if place.free_bytes is None:
        return ok(name, f"{place.path}{new}")
    seen = f"{place.path}{new}: {place.free_bytes / GIB:.1f} GiB free"
    if place.free_files is not None and place.free_files < _FEW_FILES:
        return problem(
            name,
            f"{seen}, but room for hardly any more files (inodes)",
            f"Remove folders of many small files (`df -i`), or {elsewhere}.",
        )
    if place.free_bytes < fails_soon * GIB:
        return problem(name, seen, f"Make room, or {elsewhere}.")
    if place.free_bytes < may_fail * GIB:
        grows = {
            "run directory": "a checkpoint takes about 14 bytes a parameter (100 GiB for 7 billion); "
            "trainer.max_actor_ckpt_to_keep limits how many are kept",
            "Hugging Face cache": "a model of 7 billion parameters takes 15 GiB",
        }.get(place.role, "compilers and Ray write here")
        return note(name, seen, f"Keep in mind that {grows}. Otherwise {elsewhere}.")
    return ok(name, seen)
