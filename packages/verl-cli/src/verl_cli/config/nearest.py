"""The key that somebody probably meant, where one is plausible."""

import difflib
from collections.abc import Mapping

from verl_cli.config.keys import live_keys
from verl_cli.config.published import RENAMED, published, renamed

#: Last parts of keys as other trainers call them.
_ELSEWHERE: Mapping[str, str] = {
    "batch_size": "data.train_batch_size",
    "beta": "actor_rollout_ref.actor.kl_loss_coef",
    "checkpoint_dir": "trainer.default_local_dir",
    "epochs": "trainer.total_epochs",
    "eval_steps": "trainer.test_freq",
    "gradient_checkpointing": "actor_rollout_ref.model.enable_gradient_checkpointing",
    "learning_rate": "actor_rollout_ref.actor.optim.lr",
    "logging": "trainer.logger",
    "max_completion_length": "data.max_response_length",
    "max_grad_norm": "actor_rollout_ref.actor.optim.clip_grad",
    "max_new_tokens": "data.max_response_length",
    "max_steps": "trainer.total_training_steps",
    "max_tokens": "data.max_response_length",
    "model": "actor_rollout_ref.model.path",
    "model_name_or_path": "actor_rollout_ref.model.path",
    "num_generations": "actor_rollout_ref.rollout.n",
    "num_samples": "actor_rollout_ref.rollout.n",
    "num_train_epochs": "trainer.total_epochs",
    "output_dir": "trainer.default_local_dir",
    "output_path": "trainer.default_local_dir",
    "report_to": "trainer.logger",
    "resume_from_checkpoint": "trainer.resume_from_path",
    "reward_fn": "reward.custom_reward_function.path",
    "reward_function": "reward.custom_reward_function.path",
    "run_name": "trainer.experiment_name",
    "save_steps": "trainer.save_freq",
    "save_total_limit": "trainer.max_actor_ckpt_to_keep",
    "steps": "trainer.total_training_steps",
    "warmup_steps": "actor_rollout_ref.actor.optim.lr_warmup_steps",
    "wandb": "trainer.logger",
}

# Found by trying: below these a candidate shares little more with the key than its section.
_LIKE_LAST, _LIKE_BOTH, _LIKE_WHOLE = 0.85, 0.6, 0.75


def nearest(key: str) -> str | None:
    """Return the known key, by its present name, that `key` was probably meant to be; None where nothing is like it.

    A misspelt key is like another in its whole name and its last part; a key in the wrong section ends like another.
    Of equally likely ones a live key comes first.
    """
    whole = difflib.SequenceMatcher(b=key, autojunk=False)
    last = difflib.SequenceMatcher(b=_last(key), autojunk=False)
    best, likeness, sure = None, 0.0, False
    for candidate in dict.fromkeys([*live_keys(), *published(), *RENAMED]):
        last.set_seq1(_last(candidate))
        ending = candidate.endswith(f".{key}")
        contained = ending or (len(_last(key)) > 2 and candidate.startswith(key)) or _bare(candidate) == _bare(key)
        if last.quick_ratio() < _LIKE_BOTH and not contained:  # an upper bound, and cheap
            continue
        whole.set_seq1(candidate)
        of_last, of_whole = last.ratio(), whole.ratio()
        if not (contained or of_last >= _LIKE_LAST or (of_last >= _LIKE_BOTH and of_whole >= _LIKE_WHOLE)):
            continue
        # Of several keys with this ending the first of the tree counts, whatever the lengths of their names.
        value = (3.0 if ending else of_whole + of_last) + 0.1 * (candidate in live_keys())
        if value > likeness:
            best, likeness, sure = candidate, value, contained or of_whole >= _LIKE_WHOLE
    if sure and best in live_keys():
        return best
    return _ELSEWHERE.get(_last(key), None if best is None else renamed(best))


def _last(key: str) -> str:
    return key.rsplit(".", 1)[-1]


def _bare(key: str) -> str:
    return key.replace(".", "").replace("_", "").lower()
