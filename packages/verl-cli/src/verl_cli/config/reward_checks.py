"""What must hold between the keys of the reward."""

import math
from collections.abc import Iterator

from verl_cli.config.problem import Problem
from verl_cli.config.ranges import out_of_range
from verl_cli.config.reward_rules import ENABLED, FUNCTION, MODEL, OVERLONG
from verl_cli.config.rule import ROLLOUT, Values

#: Workers that are taken without a question, however few responses there are.
_FEW_WORKERS = 64
#: Workers for each response of a step from which on the number must be a mistake.
_MOST_PER_RESPONSE = 4


def reward_problems(values: Values) -> Iterator[Problem]:
    """Everything wrong with the reward."""
    yield from _workers(values)
    enable, path, folder = (f"{MODEL}.{name}" for name in ("enable", "path", "model_path"))
    function = f"{FUNCTION}.path"
    if values[enable] and values[path] is None and values[folder] is None:
        yield Problem(
            (enable, path, folder),
            f"{enable}=true, and no model is named. Set {path}=FILE.py:Class for a class of your own, or {folder} to "
            "a Hugging Face sequence-classification folder.",
        )
    if values[enable] and values[path] is not None and values[folder] is not None:
        yield Problem(
            (enable, path, folder),
            f"Two reward models are named: {path}={values[path]} and {folder}={values[folder]}. Keep one.",
        )
    if values[enable] and values[function] is not None:
        named = path if values[path] is not None else folder
        yield Problem(
            (enable, function, path, folder),
            f"A reward function and a reward model are named: {function}={values[function]} and "
            f"{named}={values[named]}. Keep one; to use both, call the function in a reward model's score.",
        )
    buffer, longest = f"{OVERLONG}.overlong_buffer_cfg.len", f"{OVERLONG}.max_resp_len"
    if values[ENABLED] and values[buffer] == 0:
        yield Problem(
            (ENABLED, buffer),
            f"{ENABLED}=true needs a buffer. Set {buffer} to the tokens before {longest}={values[longest]} over which "
            f"the penalty grows.",
        )
    elif values[ENABLED] and values[buffer] > values[longest]:
        yield Problem(
            (ENABLED, buffer, longest, "data.max_response_length"),
            f"{buffer}={values[buffer]} tokens is more than {longest}={values[longest]}, so that every response would "
            f"be punished. Lower it.",
        )


def _workers(values: Values) -> Iterator[Problem]:
    key, of_step = "reward.num_workers", ("data.train_batch_size", f"{ROLLOUT}.n")
    workers, responses = values[key], math.prod(values[part] for part in of_step)
    if values[f"{MODEL}.enable"] or workers is None or out_of_range(key, workers):
        return
    if workers > max(_FEW_WORKERS, _MOST_PER_RESPONSE * responses):
        yield Problem(
            (key, *of_step),
            f"{key}={workers} processes would score the {responses} responses of a step ({' x '.join(of_step)}), each "
            "one at a time. Leave it out for one for each core, at most 8.",
        )
