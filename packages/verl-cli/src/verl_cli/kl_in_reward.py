"""The KL penalty in the reward, and the controller of its coefficient."""

from verl_algos import kl
from verl_data import PackedBatch

from verl_cli.columns import tensors
from verl_cli.config import KlCtrlConfig

KlController = kl.FixedController | kl.AdaptiveController


def kl_controller(config: KlCtrlConfig) -> KlController:
    """The controller that the configuration asks for."""
    if config.type == "fixed":
        return kl.FixedController(config.kl_coef)
    return kl.AdaptiveController(config.kl_coef, target=config.target_kl, horizon=config.horizon)


def penalise_kl(batch: PackedBatch, penalty: str, controller: KlController) -> tuple[PackedBatch, dict[str, float]]:
    """Take the KL between policy and reference off every token's reward, and let the controller see it."""
    columns = tensors(batch, "token_rewards", "old_logprobs", "ref_logprobs", mask="sampled_mask")
    coefficient = controller.coef
    rewarded, terms = kl.apply_kl_to_rewards(
        logprobs=columns.pop("old_logprobs"), **columns, coef=coefficient, penalty=penalty
    )
    total, count = terms["reward_kl_penalty"]
    metrics = {"actor/reward_kl_penalty_coeff": coefficient}
    if count > 0:  # a step without any sampled token says nothing about the divergence
        metrics["actor/reward_kl_penalty"] = float(total / count)
        controller.update(metrics["actor/reward_kl_penalty"], len(batch))
    return batch.with_columns(tokens={"token_rewards": rewarded.numpy()}), metrics
