"""What a reason is, and the ones that several sections share."""

from typing import NamedTuple


class Reason(NamedTuple):
    """Why a key has no effect, and what to do."""

    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.why} {self.remedy}"


DROP = "Leave it out."
ONE_DEVICE = Reason("This version runs a model on one device.", "Leave it out; the run uses one device.")
NO_PROFILER = Reason(
    "This version drives no profiler.", "Wrap the command in py-spy or nsys; timing_s/* metrics time each phase."
)
TEXT_ONLY = Reason("This version trains on text only.", DROP)
NO_TOOLS = Reason("This version has single-turn rollouts without tools.", DROP)


def update_plan(section: str) -> Reason:
    """For the keys of a pass whose micro-batches are those of a section's update."""
    return Reason(
        "Log-probs and values are computed by the packing plan of the update, so that the first ratio is exactly 1.",
        f"Set {section}.ppo_micro_batch_size_per_gpu, or use_dynamic_bsz and ppo_max_token_len_per_gpu beside it.",
    )
