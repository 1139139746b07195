"""What importing the package costs, and that its public names are there."""

import subprocess
import sys

import verl_rollout

HEAVY = ("torch", "transformers", "safetensors")


def loaded(statement: str) -> str:
    code = f"{statement}; import sys; print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_configuration_requests_and_the_errors_need_no_torch() -> None:
    use = (
        "from verl_rollout import Completion, ModelNotFoundError, NonFiniteLogitsError, Request, RolloutConfig, "
        "RolloutEngine, RolloutError, Sampling, SyncReport, ValConfig, WeightSource; import verl_rollout.interface; "
        "RolloutConfig().training_sampling(4)"
    )
    assert loaded(use) == ""


def test_every_public_name_can_be_imported() -> None:
    assert verl_rollout.__dir__() == sorted({*vars(verl_rollout), *verl_rollout.__all__})
    for name in verl_rollout.__all__:
        assert getattr(verl_rollout, name) is getattr(verl_rollout, name)
    scope: dict[str, object] = {}
    exec("from verl_rollout import *", scope)
    assert set(verl_rollout.__all__) <= set(scope)


def test_another_name_is_refused() -> None:
    assert not hasattr(verl_rollout, "no_such_name")
