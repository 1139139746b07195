"""No key is dead: for every live key, two tiny real runs that differ in that key alone differ in something observable.

Each case says what else must be set for the key to matter, to what it is changed, and where the change is looked for.
The run without the change is made twice and must be equal in everything that is observed, so that nothing passes by
chance.
"""

import contextlib
import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForSequenceClassification
from verl_cli.commands.train import run_training
from verl_cli.config import flat_keys
from verl_cli.quickstart.model import write_model

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"

Values = Mapping[str, str]
Aspect = Literal["metrics", "samples", "weights", "exports", "passes", "printed", "files", "refusal"]

#: The run that every case starts from. Values are in Hydra's grammar; WORLD is the folder of models and data.
BASE: Values = {
    "data.train_files": "WORLD/train.jsonl",
    "data.val_files": "WORLD/validation.jsonl",
    "data.train_batch_size": "4",
    "data.max_prompt_length": "8",
    "data.max_response_length": "4",
    f"{MODEL}.path": "WORLD/model",
    f"{MODEL}.enable_gradient_checkpointing": "false",
    f"{ACTOR}.ppo_mini_batch_size": "2",
    f"{ACTOR}.optim.lr": "1e-2",
    f"{ROLLOUT}.n": "2",
    "reward.custom_reward_function.path": "WORLD/reward.py",
    "reward.num_workers": "0",  # starting workers would take a third of a run
    "trainer.total_training_steps": "1",
    "trainer.default_local_dir": "run",
    "trainer.device": "cpu",
}


@dataclass(frozen=True)
class Case:
    """How one key shows that it is alive."""

    value: str
    sees: Aspect
    given: Values = field(default_factory=dict)
    """What else is set, in both runs; "" takes a key of the base away."""
    earlier: Values | None = None
    """Settings of a run that goes before, in the same folder."""
    allow_unused: bool = False
    """Whether the change leaves a key of the run without effect."""


STEPS = {"trainer.total_training_steps": "2"}
LOSS_MODE = f"{ACTOR}.policy_loss.loss_mode"
CLIP_COV = {
    LOSS_MODE: "clip_cov",
    f"{ACTOR}.policy_loss.clip_cov_ratio": "0.1",
    f"{ACTOR}.policy_loss.clip_cov_lb": "-1e6",
    f"{ACTOR}.policy_loss.clip_cov_ub": "1e6",
}
KL_COV = {LOSS_MODE: "kl_cov", f"{ACTOR}.policy_loss.kl_cov_ratio": "0.1", f"{ACTOR}.ppo_epochs": "2"}
CORRECTION = "algorithm.rollout_correction"
WEIGHTED = {f"{CORRECTION}.rollout_is": "token", f"{CORRECTION}.rollout_is_threshold": "0.9"}
REJECTED = {f"{CORRECTION}.rollout_rs": "token_k2", f"{CORRECTION}.rollout_rs_threshold": "10"}
GDPO = {"algorithm.adv_estimator": "gdpo", "algorithm.gdpo_reward_keys": "[score,odd]"}
GRPO = {"algorithm.adv_estimator": "grpo"}
ADAPTIVE = {
    "algorithm.kl_ctrl.type": "adaptive",
    "algorithm.kl_ctrl.target_kl": "1e-6",
    "algorithm.kl_penalty": "abs",
    "trainer.total_training_steps": "3",
}
FILTERED = {"algorithm.filter_groups.enable": "true", "algorithm.filter_groups.metric": "score", **STEPS}
SMALL_PASSES = {
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": "1",
    f"{REF}.log_prob_micro_batch_size_per_gpu": "1",
    "critic.ppo_micro_batch_size_per_gpu": "1",
}
BY_FACTOR = {
    f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm",
    f"{ACTOR}.loss_scale_factor": "4",
    "critic.loss_agg_mode": "seq-mean-token-sum-norm",
    "critic.loss_scale_factor": "4",
}
LINEAR, COSINE = (
    {f"{ACTOR}.optim.lr_scheduler_type": name, "critic.optim.lr_scheduler_type": name} for name in ("linear", "cosine")
)
IN_LOSS = {f"{ACTOR}.use_kl_loss": "true"}
SHORT_PROMPTS = {"data.max_prompt_length": "4", "data.truncation": "right", "data.train_batch_size": "2"}
RULES = {"reward.custom_reward_function.path": "", "reward.num_workers": ""}
BY_MODEL = {**RULES, "reward.reward_model.path": "WORLD/reward_model.py:Length"}
OVERLONG = {
    "reward.reward_manager.name": "dapo",
    "reward.reward_kwargs.overlong_buffer_cfg.enable": "true",
    "reward.reward_kwargs.overlong_buffer_cfg.len": "3",
}


def _heavy(function: str) -> Values:
    return {
        "reward.custom_reward_function.path": "WORLD/heavy.py",
        "reward.custom_reward_function.name": function,
        "reward.num_workers": "1",
        "trainer.val_before_train": "false",
    }


SAMPLED = {f"{ROLLOUT}.val_kwargs.temperature": "1.0"}
BY_FOLDER = {"trainer.default_local_dir": ""}

CASES: dict[str, Case] = {
    "data.train_files": Case("WORLD/more.jsonl", "metrics"),
    "data.val_files": Case("WORLD/more.jsonl", "samples"),
    "data.train_weights": Case("[1,3]", "metrics", {"data.train_files": "[WORLD/train.jsonl,WORLD/more.jsonl]"}),
    "data.train_batch_size": Case("8", "metrics"),
    "data.max_prompt_length": Case("3", "metrics", SHORT_PROMPTS),
    "data.max_response_length": Case("2", "metrics"),
    "data.prompt_key": Case("question", "samples"),
    "data.reward_fn_key": Case("source", "metrics", RULES),
    "data.shuffle": Case("false", "metrics"),
    "data.order_by": Case("extra_info.index", "metrics"),
    "data.seed": Case("7", "metrics"),
    "data.truncation": Case("left", "samples", SHORT_PROMPTS),
    "data.filter_overlong_prompts": Case("true", "metrics", SHORT_PROMPTS),
    "data.train_max_samples": Case("5", "metrics"),
    "data.val_max_samples": Case("2", "samples"),
    "data.apply_chat_template_kwargs": Case("{mark: true}", "samples", {f"{MODEL}.tokenizer_path": "WORLD/other"}),
    "data.prompt_format": Case("rendered", "refusal", {"data.prompt_key": "text"}),
    f"{MODEL}.path": Case("WORLD/other", "metrics"),
    f"{MODEL}.tokenizer_path": Case("WORLD/other", "metrics"),
    f"{MODEL}.trust_remote_code": Case("true", "passes", {f"{MODEL}.path": "WORLD/code"}),
    f"{MODEL}.enable_gradient_checkpointing": Case("true", "passes"),
    f"{MODEL}.override_config": Case("{rms_norm_eps: 0.5}", "metrics"),
    f"{ACTOR}.ppo_mini_batch_size": Case("4", "passes"),
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": Case("1", "passes"),
    f"{ACTOR}.use_dynamic_bsz": Case("true", "passes", SMALL_PASSES, allow_unused=True),
    f"{ACTOR}.ppo_max_token_len_per_gpu": Case("12", "passes"),
    f"{ACTOR}.clip_ratio": Case("1e-4", "metrics"),
    f"{ACTOR}.clip_ratio_low": Case("1e-4", "metrics"),
    f"{ACTOR}.clip_ratio_high": Case("1e-4", "metrics"),
    f"{ACTOR}.clip_ratio_c": Case("1.0001", "metrics"),
    f"{ACTOR}.tau_pos": Case("2", "metrics", {LOSS_MODE: "sapo"}),
    f"{ACTOR}.tau_neg": Case("2", "metrics", {LOSS_MODE: "sapo"}),
    LOSS_MODE: Case("cispo", "metrics"),
    f"{ACTOR}.policy_loss.clip_cov_ratio": Case("0.5", "metrics", CLIP_COV),
    f"{ACTOR}.policy_loss.clip_cov_lb": Case("1e5", "metrics", CLIP_COV),
    f"{ACTOR}.policy_loss.clip_cov_ub": Case("-1e5", "metrics", CLIP_COV),
    f"{ACTOR}.policy_loss.kl_cov_ratio": Case("0.5", "metrics", KL_COV),
    f"{ACTOR}.policy_loss.ppo_kl_coef": Case("5", "metrics", KL_COV),
    f"{ACTOR}.policy_loss.dro_beta": Case("2", "metrics", {LOSS_MODE: "dro", f"{ACTOR}.policy_loss.dro_beta": "1"}),
    f"{ACTOR}.policy_loss.loss_kwargs": Case("{scale: 2}", "metrics", {LOSS_MODE: "WORLD/algorithms.py:loss"}),
    f"{ACTOR}.loss_agg_mode": Case("token-sum", "metrics"),
    f"{ACTOR}.loss_scale_factor": Case("8", "metrics", BY_FACTOR),
    f"{ACTOR}.entropy_coeff": Case("0.1", "metrics"),
    f"{ACTOR}.use_kl_loss": Case("true", "metrics"),
    f"{ACTOR}.kl_loss_coef": Case("1.0", "metrics", IN_LOSS),
    f"{ACTOR}.kl_loss_type": Case("abs", "metrics", IN_LOSS),
    f"{ACTOR}.ppo_epochs": Case("2", "passes"),
    f"{ACTOR}.shuffle": Case("true", "metrics"),
    f"{REF}.log_prob_micro_batch_size_per_gpu": Case("1", "passes"),
    f"{REF}.log_prob_use_dynamic_bsz": Case("true", "passes", SMALL_PASSES, allow_unused=True),
    f"{REF}.log_prob_max_token_len_per_gpu": Case("12", "passes"),
    f"{ROLLOUT}.name": Case("vllm", "refusal"),
    f"{ROLLOUT}.n": Case("3", "metrics"),
    f"{ROLLOUT}.temperature": Case("0.5", "metrics"),
    f"{ROLLOUT}.top_k": Case("2", "metrics"),
    f"{ROLLOUT}.top_p": Case("0.5", "metrics"),
    f"{ROLLOUT}.seed": Case("7", "metrics"),
    f"{ROLLOUT}.ignore_eos": Case("true", "metrics"),
    f"{ROLLOUT}.dtype": Case("float64", "passes"),
    f"{ROLLOUT}.max_num_seqs": Case("3", "passes"),
    f"{ROLLOUT}.val_kwargs.n": Case("2", "samples", SAMPLED),
    f"{ROLLOUT}.val_kwargs.temperature": Case("1.0", "samples"),
    f"{ROLLOUT}.val_kwargs.top_k": Case("1", "samples", SAMPLED),
    f"{ROLLOUT}.val_kwargs.top_p": Case("0.1", "samples", SAMPLED),
    "critic.model.path": Case("WORLD/other", "metrics"),
    "critic.model.tokenizer_path": Case("WORLD/other", "exports"),
    "critic.model.trust_remote_code": Case("true", "passes", {"critic.model.path": "WORLD/code"}),
    "critic.model.enable_gradient_checkpointing": Case("false", "passes"),
    "critic.model.override_config": Case("{rms_norm_eps: 0.5}", "metrics"),
    "critic.ppo_mini_batch_size": Case("4", "passes"),
    "critic.ppo_micro_batch_size_per_gpu": Case("1", "passes"),
    "critic.use_dynamic_bsz": Case("true", "passes", SMALL_PASSES, allow_unused=True),
    "critic.ppo_max_token_len_per_gpu": Case("12", "passes"),
    "critic.ppo_epochs": Case("2", "passes"),
    "critic.cliprange_value": Case("1e-6", "metrics"),
    "critic.loss_agg_mode": Case("token-sum", "metrics"),
    "critic.loss_scale_factor": Case("8", "metrics", BY_FACTOR),
    "critic.shuffle": Case("true", "metrics"),
    "critic.enable": Case("true", "passes", {"algorithm.adv_estimator": "WORLD/algorithms.py:estimator"}),
    "algorithm.adv_estimator": Case("grpo", "metrics"),
    "algorithm.adv_estimator_kwargs": Case("{whiten: false}", "metrics"),
    "algorithm.gdpo_reward_keys": Case("[score]", "metrics", GDPO),
    "algorithm.gdpo_reward_weights": Case("[5,1]", "metrics", GDPO),
    f"{CORRECTION}.preset": Case("decoupled_token_is", "metrics"),
    f"{CORRECTION}.rollout_is": Case("sequence", "metrics", WEIGHTED),
    f"{CORRECTION}.rollout_is_threshold": Case("2.0", "metrics", WEIGHTED),
    f"{CORRECTION}.rollout_is_batch_normalize": Case("true", "metrics", WEIGHTED),
    f"{CORRECTION}.rollout_rs": Case("seq_max_k2", "metrics", REJECTED),
    f"{CORRECTION}.rollout_rs_threshold": Case("1e-20", "metrics", REJECTED),
    f"{CORRECTION}.bypass_mode": Case("true", "passes"),
    f"{CORRECTION}.loss_type": Case("reinforce", "metrics", {f"{CORRECTION}.bypass_mode": "true"}),
    "algorithm.gamma": Case("0.5", "metrics"),
    "algorithm.lam": Case("0.5", "metrics"),
    "algorithm.norm_adv_by_std_in_grpo": Case("false", "metrics", GRPO),
    "algorithm.use_kl_in_reward": Case("false", "metrics"),
    "algorithm.kl_penalty": Case("abs", "metrics", STEPS),
    "algorithm.kl_ctrl.type": Case("adaptive", "metrics", STEPS),
    "algorithm.kl_ctrl.kl_coef": Case("0.5", "metrics"),
    "algorithm.kl_ctrl.horizon": Case("100", "metrics", ADAPTIVE),
    "algorithm.kl_ctrl.target_kl": Case("100", "metrics", ADAPTIVE),
    "algorithm.filter_groups.enable": Case(
        "true", "metrics", {"algorithm.filter_groups.metric": "score"}, allow_unused=True
    ),
    "algorithm.filter_groups.metric": Case("odd", "metrics", FILTERED),
    "algorithm.filter_groups.max_num_gen_batches": Case("1", "refusal", FILTERED),
    "reward.custom_reward_function.path": Case("WORLD/constant.py", "metrics"),
    "reward.custom_reward_function.name": Case("second", "metrics"),
    "reward.custom_reward_function.reward_kwargs": Case("{bonus: 1}", "metrics"),
    "reward.reward_model.enable": Case("false", "metrics", BY_MODEL, allow_unused=True),
    "reward.reward_model.path": Case("WORLD/reward_model.py:Twice", "metrics", BY_MODEL),
    "reward.reward_model.model_path": Case("WORLD/scorer", "metrics", RULES),
    "reward.reward_model.kwargs": Case("{bonus: 1}", "metrics", BY_MODEL),
    "reward.reward_manager.name": Case("naive", "metrics", OVERLONG, allow_unused=True),
    "reward.reward_kwargs.max_resp_len": Case("6", "metrics", OVERLONG),
    "reward.reward_kwargs.overlong_buffer_cfg.enable": Case("false", "metrics", OVERLONG, allow_unused=True),
    "reward.reward_kwargs.overlong_buffer_cfg.len": Case("4", "metrics", OVERLONG),
    "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor": Case("2", "metrics", OVERLONG),
    "reward.reward_kwargs.overlong_buffer_cfg.log": Case("true", "metrics", OVERLONG),
    "reward.num_workers": Case("0", "metrics", _heavy("located")),
    "reward.cpu_seconds": Case("0.05", "metrics", _heavy("computes")),
    "reward.wall_seconds": Case("0.05", "metrics", _heavy("sleeps")),
    "reward.memory_mb": Case("300", "metrics", _heavy("allocates")),
    "trainer.total_epochs": Case("2", "metrics", {"trainer.total_training_steps": "", "trainer.total_epochs": "1"}),
    "trainer.total_training_steps": Case("2", "metrics"),
    "trainer.project_name": Case("project", "files", BY_FOLDER),
    "trainer.experiment_name": Case("experiment", "files", BY_FOLDER),
    "trainer.logger": Case("[jsonl]", "printed"),
    "trainer.log_val_generations": Case("2", "printed"),
    "trainer.nnodes": Case("2", "refusal"),
    "trainer.n_gpus_per_node": Case("2", "refusal"),
    "trainer.save_freq": Case("1", "files", STEPS),
    "trainer.test_freq": Case("1", "samples", STEPS),
    "trainer.val_before_train": Case("false", "samples"),
    "trainer.val_only": Case("true", "files"),
    "trainer.health_warnings": Case(
        "false",
        "files",
        {"reward.custom_reward_function.path": "WORLD/constant.py", "trainer.total_training_steps": "5"},
    ),
    "trainer.critic_warmup": Case("1", "metrics", STEPS),
    "trainer.max_actor_ckpt_to_keep": Case("1", "files", {**STEPS, "trainer.save_freq": "1"}),
    "trainer.default_local_dir": Case("elsewhere", "files"),
    "trainer.default_hdfs_dir": Case("copies", "files"),
    "trainer.resume_mode": Case("disable", "refusal", earlier={}),
    "trainer.resume_from_path": Case(
        "earlier/global_step_2",
        "metrics",
        {
            "trainer.resume_mode": "path",
            "trainer.resume_from_path": "earlier/global_step_1",
            "trainer.total_training_steps": "3",
        },
        earlier={**STEPS, "trainer.default_local_dir": "earlier", "trainer.save_freq": "1"},
    ),
    "trainer.device": Case("cuda", "passes" if torch.cuda.is_available() else "refusal"),
    "trainer.seed": Case("7", "metrics"),
}
for _optim in (f"{ACTOR}.optim", "critic.optim"):
    CASES |= {
        f"{_optim}.lr": Case("1e-4", "metrics"),
        f"{_optim}.lr_warmup_steps": Case("3", "metrics"),
        f"{_optim}.lr_warmup_steps_ratio": Case("1.0", "metrics"),
        f"{_optim}.lr_scheduler_type": Case("linear", "metrics"),
        f"{_optim}.min_lr_ratio": Case("0.5", "metrics", LINEAR),
        f"{_optim}.num_cycles": Case("1.0", "metrics", COSINE),
        f"{_optim}.weight_decay": Case("0.5", "weights"),
        f"{_optim}.betas": Case("[0.5, 0.9]", "weights"),
        f"{_optim}.clip_grad": Case("1e-5", "weights"),
    }
for _fsdp in (f"{ACTOR}.fsdp_config", f"{REF}.fsdp_config", "critic.fsdp"):
    CASES |= {
        f"{_fsdp}.model_dtype": Case("fp64", "passes"),
        f"{_fsdp}.dtype": Case("bf16", "passes"),
        f"{_fsdp}.reshard_after_forward": Case("false", "passes"),
    }


REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0):
    return {"score": bonus + sum(map(ord, solution_str)) % 7 / 7, "acc": solution_str == ground_truth,
            "odd": len(solution_str) % 2}

def second(data_source, solution_str, ground_truth, extra_info=None):
    return len(solution_str)
"""
HEAVY = """
import sys, time

def third(solution_str):
    return sum(map(ord, solution_str)) % 3 == 0

def located(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": len(solution_str), "in_trainer": "verl_cli.trainer" in sys.modules}

def computes(data_source, solution_str, ground_truth, extra_info=None):
    end = time.process_time() + 0.3 * third(solution_str)
    while time.process_time() < end:
        pass
    return len(solution_str)

def sleeps(data_source, solution_str, ground_truth, extra_info=None):
    time.sleep(0.3 * third(solution_str))
    return len(solution_str)

def allocates(data_source, solution_str, ground_truth, extra_info=None):
    return len(bytes(third(solution_str) << 29)) * 0 + len(solution_str)
"""
REWARD_MODEL = """
from verl import RewardModel

class Length(RewardModel):
    def __init__(self, bonus=0):
        self.bonus = bonus

    def score(self, rows):
        return [self.bonus + len(row.solution_str) for row in rows]

class Twice(Length):
    def score(self, rows):
        return [2 * score for score in super().score(rows)]
"""
ALGORITHMS = """
def loss(logprobs, old_logprobs, advantages, mask, scale=1.0):
    return -scale * advantages * (logprobs - old_logprobs).exp(), {"scale": (mask.sum() * scale, mask.sum())}

def estimator(token_rewards, mask, values=None):
    returns = token_rewards if values is None else token_rewards - values
    return returns * mask, returns * mask
"""
CODE = """
from transformers import Qwen2ForCausalLM, Qwen2ForTokenClassification

class OwnForCausalLM(Qwen2ForCausalLM):
    pass

class OwnForTokenClassification(Qwen2ForTokenClassification):
    pass
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, data and reward functions; no case writes into it."""
    folder = tmp_path_factory.mktemp("world")
    for name, seed in (("model", 0), ("other", 1), ("code", 0)):
        write_model(folder / name, seed=seed, hidden_size=16, layers=1, heads=2)
    template = folder / "other" / "chat_template.jinja"
    template.write_text("{{ messages[0]['content'] }}{{ '+' if mark else '=' }}")
    config = json.loads((folder / "code" / "config.json").read_text())
    config["auto_map"] = {
        f"AutoModel{head}": f"modeling_own.Own{head}" for head in ("ForCausalLM", "ForTokenClassification")
    }
    (folder / "code" / "config.json").write_text(json.dumps(config))
    (folder / "code" / "modeling_own.py").write_text(CODE)
    (folder / "reward.py").write_text(REWARD)
    (folder / "algorithms.py").write_text(ALGORITHMS)
    (folder / "heavy.py").write_text(HEAVY)
    (folder / "reward_model.py").write_text(REWARD_MODEL)
    write_scorer(folder / "model", folder / "scorer")
    (folder / "constant.py").write_text(REWARD.replace("sum(map(ord, solution_str)) % 7 / 7", "1"))
    for name, start, count in (("train", 5, 9), ("validation", 8, 4), ("more", 20, 8)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row(i)) + "\n" for i in range(start, start + count)))
    return folder


def write_scorer(model: Path, folder: Path) -> None:
    """A model with a classification head and the tokenizer of `model`."""
    config = Qwen2Config.from_pretrained(model, num_labels=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        classifier: Any = Qwen2ForSequenceClassification
        classifier(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)


def row(number: int) -> dict[str, Any]:
    """A problem of four to six characters, under two names each of what a key may choose."""
    other = number % 3
    return {
        "prompt": [{"role": "user", "content": f"{number}+{other}="}],
        "question": [{"role": "user", "content": f"{other}+{number}="}],
        "text": f"{number}+{other}=",
        "data_source": "verl/arithmetic",
        "source": "openai/gsm8k",
        "reward_model": {"style": "rule", "ground_truth": str(number + other)},
        "extra_info": {"index": number},
    }


Observation = dict[Aspect, Any]


class Laboratory:
    """Makes runs and remembers what was seen of those that nothing was changed in."""

    def __init__(self, world: Path, new_folder: Callable[[], Path]) -> None:
        self.world = world
        self.new_folder = new_folder
        self.controls: dict[object, Observation] = {}

    def control(self, case: Case) -> Observation:
        """What a case's run shows without the change; made twice the first time, and equal both times."""
        identity = (tuple(sorted(case.given.items())), str(case.earlier))
        if identity not in self.controls:
            self.controls[identity] = self.observe(case)
            again = self.observe(case)
            for aspect, seen in self.controls[identity].items():
                assert seen == again[aspect], f"two equal runs differ in their {aspect}"
        return self.controls[identity]

    def observe(self, case: Case, changes: Values | None = None) -> Observation:
        """What a case's run shows."""
        folder, values = self.new_folder(), {**BASE, **case.given, **(changes or {})}
        passes: Counter[tuple[object, ...]] = Counter()
        with contextlib.chdir(folder):
            if case.earlier is not None:
                assert self.run({**BASE, **case.earlier}, case.allow_unused)[0] is None
            with counting(passes):
                refusal, printed = self.run(values, case.allow_unused)
        run_dir = folder / (values["trainer.default_local_dir"] or "checkpoints/verl_examples/gsm8k")
        text = printed.replace(str(folder), "FOLDER").replace(str(self.world), "WORLD")
        return {
            "metrics": [untimed(json.loads(line)) for line in lines_of(run_dir / "metrics.jsonl")],
            "samples": lines_of(run_dir / "val_samples.jsonl"),
            "weights": hashes(folder, lambda path: path.suffix == ".safetensors"),
            "exports": hashes(folder, lambda path: path.suffix != ".safetensors"),
            "passes": passes,
            "printed": [re.sub(r"^(step: \d+).*", r"\1", line) for line in text.splitlines()],
            "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()),
            "refusal": None if refusal is None else text[text.index("error: ") :],
        }

    def run(self, values: Values, allow_unused: bool) -> tuple[int | None, str]:
        """Train; the exit code of a run that was refused, and all that was printed."""
        overrides = [f"{key}={self.written(value)}" for key, value in values.items() if value]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                run_training(overrides, allow_unused=allow_unused)
            except SystemExit as stopped:
                assert isinstance(stopped.code, int)
                return stopped.code, printed.getvalue()
            finally:
                if dist.is_initialized():
                    dist.destroy_process_group()
        return None, printed.getvalue()

    def written(self, value: str) -> str:
        """A value with the world's folder in it."""
        return re.sub(r"WORLD[^,\]]*", lambda path: f"'{path[0].replace('WORLD', str(self.world))}'", value)


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def hashes(folder: Path, wanted: Callable[[Path], bool]) -> dict[str, str]:
    """A digest of each wanted file of the exported models, by its path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("huggingface/*")
        if wanted(path)
    }


TIMES = re.compile(r"timing_.*|perf/(throughput|time_per_step).*|.*seconds|.*_seconds")


def untimed(line: dict[str, Any]) -> dict[str, Any]:
    return {"step": line["step"]} | {k: v for k, v in line["data"].items() if not TIMES.fullmatch(k)}


@contextlib.contextmanager
def counting(passes: Counter[tuple[object, ...]]) -> Iterator[None]:
    """Count the forward passes of models and layers: class, device, shape, dtype, and which parameters are sharded."""

    def count(module: torch.nn.Module, arguments: object, output: Any) -> None:
        name = type(module).__name__
        if not name.endswith(("Layer", "Model", "ForCausalLM", "ForTokenClassification")):
            return
        tensor = output if isinstance(output, torch.Tensor) else output[0]
        layers = [layer for layer in module.modules() if type(layer).__name__.endswith("Layer")]
        sharded = sum(isinstance(weight, DTensor) for layer in layers for weight in layer.parameters())
        passes[(name, tensor.device.type, tuple(tensor.shape), tensor.dtype, tensor.requires_grad, sharded)] += 1

    def begin(module: torch.nn.Module, arguments: object) -> None:
        # The parts of a layer that is recomputed begin again; the last ones do not end, because nothing needs them.
        passes[(type(module).__name__, "begins", module.training)] += 1

    handles = register_module_forward_hook(count), register_module_forward_pre_hook(begin)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@pytest.fixture(scope="module")
def laboratory(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    with pytest.MonkeyPatch.context() as patch:
        # transformers copies a model folder's code there; it is on the path of this process alone.
        cache = str(tmp_path_factory.mktemp("modules"))
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", cache)
        patch.syspath_prepend(cache)
        yield Laboratory(world, lambda: tmp_path_factory.mktemp("run"))


def test_there_is_a_case_for_every_live_key_and_for_no_other() -> None:
    assert sorted(CASES) == sorted(key.name for key in flat_keys())


@pytest.mark.parametrize("key", [key.name for key in flat_keys()])
def test_toggling_a_key_shows(laboratory: Laboratory, key: str) -> None:
    case = CASES[key]
    before = laboratory.control(case)
    after = laboratory.observe(case, {key: case.value})
    if case.sees != "refusal":
        assert (before["refusal"], after["refusal"]) == (None, None)
    assert before[case.sees] != after[case.sees], f"{key}={case.value} changed nothing in the {case.sees}"
