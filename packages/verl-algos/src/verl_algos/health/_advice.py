"""Which configuration key to try first, with a value: from the run's present settings where they are known."""

from collections.abc import Mapping
from dataclasses import dataclass, field

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
KL_IN_REWARD, KL_IN_LOSS = "algorithm.kl_ctrl.kl_coef", f"{ACTOR}.kl_loss_coef"
KL_TARGET, LR = "algorithm.kl_ctrl.target_kl", f"{ACTOR}.optim.lr"
ENTROPY, CLIP_HIGH = f"{ACTOR}.entropy_coeff", f"{ACTOR}.clip_ratio_high"
N, TEMPERATURE = f"{ROLLOUT}.n", f"{ROLLOUT}.temperature"
FILTER = "algorithm.filter_groups.enable"
PRESET, REJECTION = "algorithm.rollout_correction.preset", "algorithm.rollout_correction.rollout_rs"
PROMPTS, REWARD, LENGTH = "data.train_files", "reward.custom_reward_function.path", "data.max_response_length"


@dataclass(frozen=True)
class Settings:
    """The resolved configuration by dotted key; empty where the monitors are used without one."""

    values: Mapping[str, object] = field(default_factory=dict)

    def number(self, key: str) -> float | None:
        """The present value, if it is a number."""
        value = self.values.get(key)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def scaled(self, key: str, factor: float, otherwise: float) -> str:
        """`key=value` with the present value times `factor`; with `otherwise` where there is none, or it is 0."""
        now = self.number(key)
        return f"{key}={now * factor:g} (now {now:g})" if now else f"{key}={otherwise:g}"

    def more_exploration(self) -> str:
        """What keeps the entropy up: first the room for unlikely tokens to grow, then a bonus."""
        high = self.number(CLIP_HIGH)
        clipped = self.values.get(f"{ACTOR}.policy_loss.loss_mode", "vanilla") == "vanilla"
        if clipped and (high is None or high < 0.28):
            return f"{CLIP_HIGH}=0.28"
        return self.scaled(ENTROPY, 2.0, 0.001)

    def less_entropy(self) -> str:
        """What keeps the entropy down."""
        return f"{ENTROPY}=0" if self.number(ENTROPY) else self.scaled(LR, 0.5, 5e-7)

    def variety(self) -> str:
        """What makes the responses to a prompt differ."""
        temperature = self.number(TEMPERATURE)
        return f"{TEMPERATURE}=1" if temperature is None or temperature < 1.0 else self.more_exploration()

    def compared(self) -> str:
        """What gets more groups whose rewards differ: drawing on until there are enough, else larger groups."""
        return self.scaled(N, 2, 16) if self.values.get(FILTER) is True else f"{FILTER}=true"

    def less_rejection(self) -> str:
        """What lets tokens into the loss: to reject none, or in a run that rejects none, a reward that scores."""
        if not self.values or self.values.get(REJECTION):
            return f"{REJECTION}=null"
        if self.values.get(PRESET):
            return f"{PRESET}=null"
        return f"{REWARD}=FILE.py with a function that scores every response"

    def kl(self, factor: float) -> str:
        """A KL coefficient that is `factor` times the present one: of the KL term that the run has."""
        in_loss = self.values.get(f"{ACTOR}.use_kl_loss")
        in_reward = self.values.get("algorithm.use_kl_in_reward")
        if self.values and not in_loss and not in_reward:
            return f"{ACTOR}.use_kl_loss=true"
        if in_reward and not in_loss:
            if self.values.get("algorithm.kl_ctrl.type") == "adaptive":
                return self.scaled(KL_TARGET, 1.0 / factor, 0.05)
            return self.scaled(KL_IN_REWARD, factor, 0.001)
        return self.scaled(KL_IN_LOSS, factor, 0.001)
