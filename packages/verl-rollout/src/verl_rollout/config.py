"""What a user chooses about generation, under the names of `actor_rollout_ref.rollout`."""

from dataclasses import dataclass, field

from verl_rollout.interface import Sampling

#: The names of the types that weights may have; torch's own.
DTYPES = ("bfloat16", "float16", "float32", "float64")


@dataclass
class ValConfig:
    """How validation responses are drawn."""

    n: int = 1
    """Responses per validation prompt; more than one shows the spread where the temperature is above 0."""
    temperature: float = 0.0
    """0 takes the likeliest token, so that validations differ only by the weights."""
    top_k: int = -1
    """Keeps the k likeliest tokens; -1 keeps all."""
    top_p: float = 1.0
    """Keeps the likeliest tokens that together have this probability; 1 keeps all."""


@dataclass
class RolloutConfig:
    """How responses are generated."""

    name: str | None = None
    """Which engine generates; unset takes the fastest that is installed and runs on the device."""
    n: int = 1
    """Responses per training prompt; group-relative advantages need at least 2."""
    temperature: float = 1.0
    """Divides the logits, here and in training; 1 keeps the policy gradient on the model's own distribution."""
    top_k: int = -1
    """Keeps the k likeliest tokens; -1 keeps all, and anything else samples from another policy than is trained."""
    top_p: float = 1.0
    """Keeps the likeliest tokens that together have this probability; 1 keeps all, for the same reason."""
    seed: int = 42
    """Names the run's random streams: the same seed gives the same responses for the same weights."""
    ignore_eos: bool = False
    """Generates to the length limit whatever is sampled; for timing only."""
    dtype: str | None = None
    """Type of the weights; unset takes bfloat16 on an accelerator and float32 on a CPU, where less is no faster."""
    max_num_seqs: int = 256
    """Sequences decoded together; fewer need less memory for their keys and values."""
    val_kwargs: ValConfig = field(default_factory=ValConfig)
    """How validation differs from training."""

    def training_sampling(self, max_tokens: int) -> Sampling:
        """How training responses of at most `max_tokens` tokens are drawn."""
        return Sampling(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            ignore_eos=self.ignore_eos,
        )

    def validation_sampling(self, max_tokens: int) -> Sampling:
        """How validation responses of at most `max_tokens` tokens are drawn."""
        return Sampling(
            max_tokens=max_tokens,
            temperature=self.val_kwargs.temperature,
            top_p=self.val_kwargs.top_p,
            top_k=self.val_kwargs.top_k,
            seed=self.seed,
            ignore_eos=self.ignore_eos,
        )
