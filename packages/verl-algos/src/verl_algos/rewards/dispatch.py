"""The default reward function: a rule for each known data_source."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from verl_algos.rewards import (
    arithmetic,
    boxed,
    code_tests,
    formats,
    geo3k,
    gsm8k,
    math_dapo,
    math_reward,
    multiple_choice,
    search_qa,
)
from verl_algos.rewards.types import RewardResult

#: A function of the response and the ground truth, with options of its own.
Rule = Callable[..., RewardResult]

#: The rules by their own names, for ``default_compute_score(..., rule=NAME)``.
NAMED_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "arithmetic": arithmetic.compute_score,
        "boxed": boxed.compute_score,
        "code": code_tests.compute_score,
        "format": formats.compute_score,
        "geo3k": geo3k.compute_score,
        "gsm8k": gsm8k.compute_score,
        "math": math_reward.compute_score,
        "math_dapo": math_dapo.compute_score,
        "multiple_choice": multiple_choice.compute_score,
        "search_qa": search_qa.compute_score,
    }
)


class Rules(Mapping[str, Rule]):
    """The rule of each data_source; a name that ends with ``*`` stands for every one that begins like it."""

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self._rules = dict(rules)
        self._prefixes = {name[:-1]: rule for name, rule in rules.items() if name.endswith("*")}

    def __getitem__(self, data_source: str) -> Rule:
        if (rule := self._rules.get(data_source)) is not None:
            return rule
        for prefix, rule in self._prefixes.items():
            if data_source.startswith(prefix):
                return rule
        raise KeyError(data_source)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)


#: The published names of data sources, and ours.
RULES: Mapping[str, Rule] = Rules(
    {
        "openai/gsm8k": gsm8k.compute_score,
        "verl/arithmetic": arithmetic.compute_score,
        **dict.fromkeys(
            ("lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500"),
            math_reward.compute_score,
        ),
        **dict.fromkeys(("math_dapo", "math", "math_dapo_reasoning", "aime*"), math_dapo.compute_score),
        **dict.fromkeys(
            (
                "numina_aops_forum",
                "numina_synthetic_math",
                "numina_amc_aime",
                "numina_synthetic_amc",
                "numina_cn_k12",
                "numina_olympiads",
            ),
            math_reward.compute_score,
        ),
        **dict.fromkeys(("codecontests", "apps", "codeforces", "taco"), code_tests.compute_score),
        "hiyouga/geometry3k": geo3k.compute_score,
        **dict.fromkeys(
            (
                "searchR1_nq",
                "searchR1_triviaqa",
                "searchR1_popqa",
                "searchR1_hotpotqa",
                "searchR1_2wikimultihopqa",
                "searchR1_musique",
                "searchR1_bamboogle",
            ),
            search_qa.compute_score,
        ),
    }
)


def default_compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    rule: str | None = None,
    **kwargs: Any,
) -> RewardResult:
    """Score a response by the rule of its data_source; `kwargs` are the rule's own options (``method="flexible"``).

    Args:
        data_source: of the row.
        solution_str: the response.
        ground_truth: of the row.
        extra_info: of the row; no rule reads it.
        rule: one of `NAMED_RULES` for every row, whatever its data_source.
        kwargs: options of the rule.

    Raises:
        ValueError: there is no rule for this data_source, or of this name; or the ground truth is none.
        TypeError: the response is not text, the ground truth of another type than the rule compares with, or the rule
            does not know an option.
    """
    if not isinstance(solution_str, str):
        raise TypeError(
            f"A response must be text, got {solution_str!r:.200} ({type(solution_str).__name__}): decode it."
        )
    if rule is not None:
        if not isinstance(rule, str) or rule not in NAMED_RULES:
            raise ValueError(f"No reward rule is called {rule!r}. There are: {', '.join(NAMED_RULES)}.")
        return NAMED_RULES[rule](solution_str, ground_truth, **kwargs)
    if not isinstance(data_source, str) or data_source not in RULES:
        raise ValueError(
            f"No reward rule for data_source {data_source!r}. Known: {', '.join(sorted(RULES))}. "
            "Correct the data_source column, name a rule with reward_kwargs: {rule: NAME}, or supply your own function "
            "compute_score(data_source, solution_str, ground_truth, extra_info=None) with "
            "reward.custom_reward_function.path=FILE.py reward.custom_reward_function.name=compute_score."
        )
    return RULES[data_source](solution_str, ground_truth, **kwargs)
