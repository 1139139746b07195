"""One function that turns a known failure into one paragraph."""

import sys
from typing import Any

from verl_cli.errors import InterruptedRunError, UserError
from verl_cli.failures import accelerator, memory, system
from verl_cli.failures.place import Place, place_of
from verl_cli.failures.text import chain, message, paragraphs, raised_at, said, sentence, shortened

#: Exceptions of our packages whose message tells the user what to do.
_OURS = (
    ("verl_data.errors", "DataError"),
    ("verl_data.files", "NoSpaceError"),
    ("verl_engine.errors", "EngineError"),
    ("verl_rollout.errors", "RolloutError"),
    ("verl_algos.rewards.types", "RewardLoadError"),
    ("verl_algos.rewards._pool", "WorkerStartError"),
)
_LOOK = "look at actor/grad_norm, actor/ppo_kl and critic/vf_loss of the steps before in metrics.jsonl"
#: Where numbers come from that are not finite.
_CAUSES = {
    "values": (
        "The critic's weights hold infinities or NaN, usually because its training diverged: {look}, then lower "
        "critic.optim.lr{critic_lr} or critic.optim.clip_grad and go on from an earlier checkpoint."
    ),
    "token_rewards": (
        "Rewards are checked where they are given, so it is the KL term, from log-probs of the actor or the reference: "
        "the actor has usually diverged. In that case {look}, then lower actor_rollout_ref.actor.optim.lr{actor_lr} "
        "and go on from an earlier checkpoint."
    ),
    "reward": "The reward function gave it: repair the function, or leave the row out.",
}
_CAUSES["current_kl"] = _CAUSES["token_rewards"]


def explain(error: BaseException, place: Place | None = None) -> str | None:
    """The paragraph that tells a user what happened, to what, and what to do; None for a failure that is not known.

    It is one line that ends with a full stop; a `UserError` that lists several problems keeps its empty lines between
    them. Never raises.

    Args:
        error: any exception.
        place: where it happened; by default what `during` and `record_failure` have noted on it.
    """
    place = place or place_of(error)
    if isinstance(error, InterruptedRunError):
        return _own(error, place)
    # A user's reward function has its own causes for what it raises, and its message names them.
    if _is(error, "verl_algos.rewards.types", "RewardError"):
        return sentence(message(error))
    causes = list(chain(error))
    ours = isinstance(error, UserError) or any(_is(error, *name) for name in _OURS)
    for cause in causes:
        if (which := memory.memory_of(cause)) is not None:
            return memory.out_of_memory(cause, which, place)
    if full := [cause for cause in causes if system.is_full(cause)]:
        cause = next((cause for cause in full if isinstance(cause, OSError)), full[0])
        if ours:  # it tells already what was written and what became of it
            return f"{_own(error, place)} {system.space_left(cause, place)}"
        return system.full(cause, place)
    for cause in causes:
        if system.is_out_of_files(cause):
            start = _own(error, place) if ours else f"Too many files are open{place.words}: {sentence(message(cause))}"
            return f"{start} {system.out_of_files()}"
    for cause in causes:
        if accelerator.is_accelerator_failure(cause):
            return accelerator.accelerator_failure(cause, place)
    if ours:
        return _own(error, place)
    if _is(error, "verl_algos.errors", "NonFiniteError"):
        return _not_finite(error, place)
    if system.is_connection(error):
        return system.connection_failure(error, place)
    if isinstance(error, OSError):
        return system.system_failure(error, place)
    return None


def defect(error: BaseException, place: Place | None = None) -> str:
    """The paragraph about a failure that is not known: its type, where it happened, and how to report it."""
    place = place or place_of(error)
    what = sentence(shortened(f"{type(error).__name__}: {message(error)}"))
    where = f" It was raised at {sentence(at)}" if (at := raised_at(error)) else ""
    kept = (
        f"The traceback, the versions and the configuration are in {place.log}"
        if place.log
        else "The traceback is printed above"
    )
    return (
        f"An unexpected error{place.words}: {what}{where} This is a defect, of this program or of code that you gave "
        f"it (a reward function, a model's own code). {kept}: if its last lines are in your code, repair that; if not, "
        "report it to the developers together with what is there, after taking out what is private."
    )


def _own(error: BaseException, place: Place) -> str:
    if isinstance(error, UserError):
        text = paragraphs(said(error)) or sentence(message(error))
    elif isinstance(error, OSError) and isinstance(error.strerror, str):  # beside the number that it is known by
        text = sentence(error.strerror)
    else:
        text = sentence(message(error))
    return text if place.role is None else f"The {place.role} could not be started. {text}"


def _not_finite(error: BaseException, place: Place) -> str:
    config = place.config
    cause = _CAUSES.get(str(getattr(error, "column", "")), "In that case {look}.")
    rates: dict[str, Any] = {"actor_lr": "", "critic_lr": ""}
    if config is not None:
        rates["actor_lr"] = f" (now {config.actor_rollout_ref.actor.optim.lr:g})"
        rates["critic_lr"] = f" (now {config.critic.optim.lr:g})"
    return f"A number is not finite{place.words}: {sentence(message(error))} {cause.format(look=_LOOK, **rates)}"


def _is(error: BaseException, module: str, name: str) -> bool:
    """Whether `error` is of a class that its module, if it was ever imported, defines."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(error, kind)
