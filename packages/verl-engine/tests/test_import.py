"""What importing the package costs, and that its public names are there."""

import subprocess
import sys

import verl_engine

HEAVY = ("torch", "transformers", "safetensors")


def loaded(statement: str) -> str:
    code = f"{statement}; import sys; print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_configuration_and_the_errors_need_no_torch() -> None:
    use = (
        "from verl_engine import CheckpointError, EngineConfig, EngineError, FsdpConfig, ModelConfig, ModelError, "
        "OptimConfig, lr_multiplier; EngineConfig(ModelConfig('m'), fsdp=FsdpConfig(dtype='bf16')); "
        "lr_multiplier(1, OptimConfig())"
    )
    assert loaded(use) == ""


def test_every_public_name_can_be_imported() -> None:
    assert verl_engine.__dir__() == sorted({*vars(verl_engine), *verl_engine.__all__})
    for name in verl_engine.__all__:
        assert getattr(verl_engine, name) is getattr(verl_engine, name)
    scope: dict[str, object] = {}
    exec("from verl_engine import *", scope)
    assert set(verl_engine.__all__) <= set(scope)


def test_another_name_is_refused() -> None:
    assert not hasattr(verl_engine, "no_such_name")
