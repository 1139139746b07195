"""What the monitors say: what was seen and since when, what it usually means, which key to try first."""

from verl_algos.health._advice import LENGTH, LR, PROMPTS, REWARD, N, Settings


def constant_reward(value: float, steps: int, since: int, seen: tuple[float, float], settings: Settings) -> str:
    """Every response of every step has the same reward."""
    text = f"Every response has had the reward {value:g} for {steps} steps (since step {since}): nothing is learnt. "
    low, high = seen
    if low == high:
        return text + (
            "No other reward was ever seen: usually the reward function gives one number for everything, does not find "
            "the answer in the response, or the prompts are far too easy or too hard. Read some responses with their "
            f"rewards (`verl-cli plan` scores one); then set {REWARD}=FILE.py to a function that tells them apart."
        )
    if value == high:
        return text + (
            "It is the best reward seen: usually the prompts are solved. Stop here, or go on with harder ones "
            f"({PROMPTS}=HARDER.parquet)."
        )
    return text + (
        f"Rewards up to {high:g} were seen before: usually the policy has broken, and writes what cannot be scored. Go "
        f"back to an earlier checkpoint with a smaller learning rate ({settings.scaled(LR, 0.5, 5e-7)})."
    )


def empty_loss(steps: int, since: int, settings: Settings) -> str:
    """No token entered the loss."""
    return (
        f"No token has entered the policy loss for {steps} steps (since step {since}): nothing is learnt. Usually the "
        "rollout correction rejects every response, or none could be scored (reward/timeout, reward/exception). Try "
        f"first: {settings.less_rejection()}."
    )


def zero_variance(
    share: float, best: float | None, worst: float | None, steps: int, since: int, settings: Settings
) -> str:
    """Most groups have equal rewards."""
    which = "" if best is None or worst is None else f"; {best:.0%} have the best reward seen, {worst:.0%} the worst"
    text = (
        f"In more and more groups all responses have the same reward: {share:.0%} of the groups now{which} ({steps} "
        f"steps, since step {since}). Such groups have no advantage, so most of what is sampled teaches nothing. "
    )
    if worst is not None and best is not None and worst > best:
        return text + (
            "Usually the prompts are too hard for this model. Try larger groups first, in which one response may "
            f"succeed: {settings.scaled(N, 2, 16)}; or easier prompts ({PROMPTS})."
        )
    return text + f"Usually the prompts are too easy by now. Try first: {settings.compared()}; or harder prompts."


def reward_saturated(share: float, best: float, steps: int, since: int) -> str:
    """Nearly all rewards are the best one."""
    return (
        f"{share:.0%} of the responses have the best reward seen, {best:g} ({steps} steps, since step {since}). "
        "Usually the training prompts are solved and further steps change little; or the policy has found how to "
        f"get the reward without solving them: read some responses. Try harder prompts first: {PROMPTS}=HARDER.parquet."
    )


def duplicates(in_group: float | None, common: float | None, steps: int, since: int, settings: Settings) -> str:
    """Responses are alike."""
    alike = in_group is not None and (common is None or in_group >= common)
    seen = (
        f"{in_group:.0%} of the responses are the same, token by token, as another one to their prompt"
        if alike
        else f"{common:.0%} of the responses to different prompts are one and the same, token by token"
    )
    return (
        f"{seen} ({steps} steps, since step {since}). Usually the policy has collapsed to one answer, or is sampled "
        f"too coldly. Try first: {settings.variety()}."
    )


def truncated(share: float, longest: int, steps: int, since: int) -> str:
    """Responses end at the length limit."""
    return (
        f"{share:.0%} of the responses end at the length limit ({steps} steps, since step {since}). They are scored "
        "without their end, so the policy learns to be short, or learns nothing. Usually the limit is too low for the "
        f"task, or the model does not write its end token. Try first: {LENGTH}={2 * longest}."
    )


def reward_of_length(
    correlation: float, growth: float, mean_length: float, steps: int, since: int, settings: Settings
) -> str:
    """Reward and length go together, and the length moves."""
    longer = growth > 1.0
    return (
        f"The {'longer' if longer else 'shorter'} a response, the higher its reward (correlation {correlation:+.2f}), "
        f"and responses have become {growth:.2g} times as long as at first, {mean_length:.0f} tokens on average "
        f"({steps} steps, since step {since}). Usually the reward pays for "
        f"{'length' if longer else 'brevity'} and not for what you want: read some responses with their rewards and "
        f"mend the reward function ({REWARD}). The key to try first: {settings.kl(2.0)}."
    )


def entropy_low(ratio: float, entropy: float, reward: float | None, steps: int, since: int, settings: Settings) -> str:
    """The policy is nearly deterministic."""
    scored = "" if reward is None else f" The mean reward is {reward:.3g} now: if that is what you want, stop here."
    return (
        f"The entropy has collapsed to {entropy:.3g} nats per token, {ratio:.0%} of what it was at first ({steps} "
        f"steps, since step {since}). Usually the policy stops exploring: it repeats what was rewarded early, and "
        f"hardly improves from here on.{scored} Else try first, from an earlier checkpoint: "
        f"{settings.more_exploration()}."
    )


def entropy_high(ratio: float, entropy: float, steps: int, since: int, settings: Settings) -> str:
    """The policy becomes random."""
    return (
        f"The entropy has risen to {entropy:.3g} nats per token, {ratio:.2g} times what it was at first ({steps} "
        f"steps, since step {since}). Usually the policy loses itself in random tokens, because the entropy bonus or "
        f"the steps are too large. Try first, from an earlier checkpoint: {settings.less_entropy()}."
    )


def loss_oscillation(
    turns: float, change: float, growth: float | None, window: int, steps: int, since: int, settings: Settings
) -> str:
    """The policy loss swings."""
    grown = "" if growth is None else f", {growth:.2g} times the change at first"
    return (
        f"The policy loss oscillates: in the last {window} steps {turns:.0%} of its changes turn back (noise: 67%), by "
        f"{change:.2g} from step to step{grown} ({steps} steps, since step {since}). Usually each update overshoots. "
        f"Try first: {settings.scaled(LR, 0.5, 5e-7)}."
    )


def grad_norm_spikes(value: float, spikes: int, factor: float, window: int, settings: Settings) -> str:
    """Gradients jump."""
    return (
        f"The gradient norm has jumped {spikes} times in the last {window} steps to {factor:g} times its usual size or "
        f"more (now {value:.3g}). Usually the steps are too large, or single responses with broken log-probs or huge "
        f"advantages drive them. Try first: {settings.scaled(LR, 0.5, 5e-7)}; and look at the responses of such a step."
    )


def kl(text: str, since: int, above: bool, settings: Settings) -> str:
    """What `kl.Monitor` says, since when, and with a value."""
    return f"{text} It has been so since step {since}. The value to try first: {settings.kl(2.0 if above else 0.5)}."
