"""The package as a whole: what it imports, and that its README is true."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import verl_algos

README = Path(__file__).parents[1] / "README.md"


def test_import_brings_torch_and_numpy_only() -> None:
    code = (
        "import sys, torch, numpy; before = set(sys.modules); import verl_algos;"
        "print(sorted({name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "['verl_algos']"


@pytest.mark.parametrize(
    "use",
    [
        "from verl_algos import names, estimators, loss_options, rollout_correction_options",
        "import verl_algos; verl_algos.names.MODES; verl_algos.rewards.load_custom",
        "from verl_algos import rewards; rewards.score_all(rewards.load_custom('pkg://verl_algos.rewards.gsm8k'), [])",
    ],
)
def test_names_and_reward_functions_need_no_torch(use: str) -> None:
    code = f"{use}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_public_names_exist() -> None:
    for package in (verl_algos, verl_algos.rewards):
        assert set(package.__all__) <= set(dir(package))
        for name in package.__all__:
            assert getattr(package, name) is getattr(package, name)
        assert not hasattr(package, "no_such_name")


def test_every_published_name_is_implemented() -> None:
    assert set(verl_algos.estimators.ESTIMATORS) == set(verl_algos.advantages.REQUIRED_INPUTS)
    one = torch.zeros(1, 1)
    assert tuple(f"{name}+" for name in verl_algos.names.PENALTIES) == verl_algos.names.STRAIGHT_THROUGH
    for penalty in (*verl_algos.names.PENALTIES, *verl_algos.names.STRAIGHT_THROUGH):
        verl_algos.kl.penalty(penalty, one, one)
    needed: dict[str, dict[str, Any]] = {"dro": {"dro_beta": 1.0}, "clip_cov": {"seed": 0}}
    for loss in verl_algos.loss_options.POLICY_LOSS_OPTIONS:
        verl_algos.policy_losses.compute(loss, logprobs=one, old_logprobs=one, advantages=one, **needed.get(loss, {}))
    for mode in verl_algos.names.MODES:
        scale = 1.0 if mode == "seq-mean-token-sum-norm" else None
        denominators = verl_algos.aggregation.Denominators(1.0, 1.0)
        verl_algos.aggregation.aggregate(one, mode=mode, denominators=denominators, scale=scale)


def test_readme_example_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 1
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", blocks[0]], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    promised = re.findall(r"# prints: (.*)", blocks[0])
    assert result.stdout.splitlines() == promised
