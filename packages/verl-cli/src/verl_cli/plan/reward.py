"""What scores the responses of a run, in a line."""

import inspect
from collections.abc import Mapping
from pathlib import Path

from verl_algos import rewards
from verl_algos.rewards import RewardLoadError

from verl_cli.config import RewardConfig, RewardModelConfig
from verl_cli.config.values import show

#: The rule of a data source by its name.
_RULE_NAMES = {rule: name for name, rule in rewards.NAMED_RULES.items()}


def find_reward_model(config: RewardModelConfig) -> None:
    """Raise RewardLoadError if the class or the folder that the configuration names is not there, or if the class does
    not take its kwargs; nothing is made."""
    if config.path is not None:
        signature = inspect.signature(rewards.load_model_class(config.path))
        try:
            signature.bind(**config.kwargs)
        except TypeError as error:
            raise RewardLoadError(
                f"The reward model {config.path}{signature} cannot be made with reward.reward_model.kwargs="
                f"{show(config.kwargs)}: {error}. Correct them, or the class."
            ) from error
    elif config.model_path is not None and not (Path(config.model_path).expanduser() / "config.json").is_file():
        raise RewardLoadError(
            f"reward.reward_model.model_path={config.model_path} is not a Hugging Face folder: it has no config.json. "
            "Name the folder of a sequence-classification model."
        )


def what_scores(config: RewardConfig, sources: Mapping[str, str]) -> str:
    """The function, model or rules, and what is done with their rewards; `sources` are the data sources of the rows."""
    punished = config.reward_kwargs.overlong_buffer_cfg
    penalty = ""
    if config.reward_manager.name == "dapo" and punished.enable:
        longest = config.reward_kwargs.max_resp_len
        penalty = (
            f"; overlong penalty of up to {punished.penalty_factor:g} for responses of {longest - punished.len:,} to "
            f"{longest:,} tokens"
        )
    return _source(config, sources) + penalty


def _source(config: RewardConfig, sources: Mapping[str, str]) -> str:
    model, custom = config.reward_model, config.custom_reward_function
    if model.enable:
        which = f"folder {model.model_path}" if model.path is None else f"class {model.path}"
        return f"reward model: {which} (not made by the plan, and so not tried)"
    options = "".join(f", {name}={value}" for name, value in custom.reward_kwargs.items() if name != "rule")
    if custom.path is not None:
        return f"function {custom.name} of {custom.path}{options}"
    if (rule := custom.reward_kwargs.get("rule")) is not None:
        return f"rule {rule} for every row{options}"
    known = {source: _RULE_NAMES[rewards.RULES[source]] for source in sorted(sources) if source in rewards.RULES}
    by_rule = {rule: [source for source, of_source in known.items() if of_source == rule] for rule in known.values()}
    told = "; ".join(f"{rule} for {', '.join(of_rule)}" for rule, of_rule in by_rule.items())
    return f"rules by data source: {told or 'none is known'}{options}"
