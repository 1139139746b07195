from verl_rollout import RolloutConfig, Sampling, ValConfig


def test_training_and_validation_are_drawn_as_configured() -> None:
    config = RolloutConfig(
        temperature=0.7, top_k=5, top_p=0.9, seed=1, ignore_eos=True, val_kwargs=ValConfig(temperature=0.1, top_k=3)
    )
    assert config.training_sampling(16) == Sampling(16, temperature=0.7, top_p=0.9, top_k=5, seed=1, ignore_eos=True)
    assert config.validation_sampling(8) == Sampling(8, temperature=0.1, top_p=1.0, top_k=3, seed=1, ignore_eos=True)


def test_the_defaults_are_the_published_ones() -> None:
    config = RolloutConfig()
    assert config.training_sampling(1) == Sampling(1, temperature=1.0, top_p=1.0, top_k=-1, seed=42)
    assert config.validation_sampling(1) == Sampling(1, temperature=0.0, top_p=1.0, top_k=-1, seed=42)
    assert (config.n, config.val_kwargs.n, config.max_num_seqs, config.dtype, config.name) == (1, 1, 256, None, None)
