"""From which values on a monitor speaks."""

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Thresholds:
    """Limits of the monitors; the line under each says why it is what it is.

    A patience is a number of consecutive steps: a limit must be passed for as long before a monitor speaks, and kept to
    for as long before it can speak again.
    """

    patience: int = 10
    """Steps of most monitors. A batch may be unlucky once or twice; ten of them in a row are the policy."""
    constant_reward_patience: int = 5
    """Steps in which every reward is the same. Such steps teach nothing at all: less time may be lost on them."""
    empty_loss_patience: int = 2
    """Steps in which no token entered the loss. One may be an outage of the judge; two are the settings."""
    zero_variance: float = 0.8
    """Share of groups. Half of them is common in healthy runs; at 0.8 four of five are sampled for nothing."""
    saturated: float = 0.95
    """Share of the responses with the best reward seen. Below it there are still some mistakes in every batch."""
    duplicates: float = 0.9
    """Share of responses. The most certain answers may be alike; with nine of ten a group has nothing to compare."""
    short_response: int = 16
    """Mean length in tokens below which twins in a group are not judged: a number or a choice repeats by nature."""
    truncated: float = 0.2
    """Share of responses. One in five is enough for the length limit, and not the task, to decide what is learnt."""
    correlation: float = 0.5
    """Size of the correlation of reward and length: at 0.5 length explains a quarter of the rewards' variance."""
    longer: float = 1.5
    """Growth of the mean length since the first steps. A correlation alone is no fault, long solutions can be better;
    together with growth, length is what is being learnt."""
    shorter: float = 0.5
    """The same for responses that shrink."""
    entropy_low: float = 0.2
    """Share of the first steps' entropy. Runs that learn well often end at a half to a third of it."""
    entropy_high: float = 3.0
    """The same upwards: a policy that is being trained becomes surer, and does not lose itself in random tokens."""
    baseline_steps: int = 5
    """First steps whose mean is what entropy and length are compared with; one step alone is too noisy."""
    window: int = 40
    """Last steps in which oscillation is looked for. That 40 independent values go up and down in turn has a chance of
    1 in 50 million; among 20 it happens in a long run."""
    sign_changes: float = 0.95
    """Share of the loss's changes that turn back; noise has 0.67 (37 of 38 turns by chance: 1 in a million)."""
    amplitude: float = 5.0
    """Growth of the loss's changes since the first window; their median moves by a third by chance."""
    amplitude_floor: float = 0.01
    """Changes of the loss that are too small to matter: advantages have a size of about 1."""
    spike: float = 10.0
    """A gradient norm divided by the median of the window; the norms of a healthy run stay within a factor of 3."""
    spikes: int = 3
    """Spikes within a window. One is a strange batch, which the gradient clip is there for."""
    kl_low: float = 0.01
    """KL per token to the reference, lower end of what is usual."""
    kl_high: float = 0.1
    """Upper end of what is usual."""
    kl_patience: int = 50
    """Steps outside. A short task moves through 0.1 and is done in fewer; learning rates that warm up need some."""

    def __post_init__(self) -> None:
        shares = ("zero_variance", "saturated", "duplicates", "truncated", "correlation", "sign_changes")
        wrong = [name for name in (*shares, "shorter", "entropy_low") if not 0.0 < getattr(self, name) <= 1.0]
        wrong += [name for name in ("longer", "entropy_high", "amplitude", "spike") if not getattr(self, name) > 1.0]
        counts = [one.name for one in fields(self) if one.type is int]
        wrong += [name for name in counts if not getattr(self, name) >= 1]
        wrong += ["window"] * (self.window < 4) + ["amplitude_floor"] * (not self.amplitude_floor >= 0.0)
        if wrong:
            named = ", ".join(f"{name}={getattr(self, name)}" for name in dict.fromkeys(wrong))
            raise ValueError(
                f"These thresholds of the health monitors cannot be: {named}. Shares are above 0 and at most 1, "
                "factors of growth above 1, numbers of steps at least 1 (window: 4), and amplitude_floor at least 0."
            )
