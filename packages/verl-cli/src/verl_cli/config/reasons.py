"""Why a published key has no effect here and what to do instead, by key or by the prefix of a whole section."""

from typing import NamedTuple


class Reason(NamedTuple):
    """Why a key has no effect, and what to do."""

    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.why} {self.remedy}"


_DROP = "Leave it out."
_ENGINES = ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic")
_MODELS = ("actor_rollout_ref.model", "critic.model")
_FSDP = ("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config", "critic.fsdp")

#: The optimiser's keys of the Megatron variant.
OPTIM_SECTIONS = ("actor_rollout_ref.actor.optim", "critic.optim")
MEGATRON_OPTIM = (
    "lr_decay_style",
    "lr_decay_steps",
    "lr_warmup_init",
    "lr_wsd_decay_steps",
    "lr_wsd_decay_style",
    "min_lr",
    "use_checkpoint_opt_param_scheduler",
    "weight_decay_incr_style",
)

#: For the `_target_` of every section.
FIXED_CLASSES = Reason("Every section is read by one fixed class of this program.", _DROP)

_PACKED = Reason("Batches are always packed; padding does not exist in this system.", _DROP)
_FOLLOWS_N = Reason("It follows actor_rollout_ref.rollout.n.", "Set actor_rollout_ref.rollout.n.")
_ONE_DEVICE = Reason("This version runs a model on one device.", "Leave it out; the run uses one device.")
_NO_PROFILER = Reason(
    "This version drives no profiler.", "Wrap the command in py-spy or nsys; timing_s/* metrics time each phase."
)
_TEXT_ONLY = Reason("This version trains on text only.", _DROP)
_VLLM_ONLY = Reason(
    "It configures an inference server, and this version generates in the trainer's process (rollout.name=hf).", _DROP
)
_NO_TOOLS = Reason("This version has single-turn rollouts without tools.", _DROP)
_NO_REWARD_MODEL = Reason(
    "This version scores by functions, not by a reward model.",
    "Call your model from a function and set reward.custom_reward_function.path.",
)
_UPDATE_PLAN = Reason(
    "Log-probs and values are computed by the packing plan of the update, so that the first ratio is exactly 1.",
    "Set {plan}.ppo_micro_batch_size_per_gpu, or use_dynamic_bsz and ppo_max_token_len_per_gpu beside it.",
)
_ACTOR_PLAN = _UPDATE_PLAN._replace(remedy=_UPDATE_PLAN.remedy.format(plan="actor_rollout_ref.actor"))
_CRITIC_PLAN = _UPDATE_PLAN._replace(remedy=_UPDATE_PLAN.remedy.format(plan="critic"))
_NO_MEGATRON = Reason("This version trains with FSDP2 only.", "Leave it out.")
_NO_OFFLOAD = Reason(
    "This version keeps every model where it computes.", "Lower the micro-batch size when memory runs out."
)
_NO_GDPO = Reason(
    "This version has no advantage estimator gdpo.", "Combine the rewards in a reward function and use grpo."
)
_NO_OVERLONG = Reason(
    "This version has no penalty for overlong responses.",
    "Subtract it in a reward function of your own (reward.custom_reward_function.path).",
)
_CHUNKED = Reason(
    "The engine bounds the memory of log-probs and entropy by its micro-batches.", "Lower the micro-batch size."
)

REASONS: dict[str, Reason] = {
    "actor_rollout_ref.hybrid_engine": Reason("Actor and rollout always share the run's devices.", _DROP),
    "actor_rollout_ref.nccl_timeout": Reason("This version runs one rank, so nothing is waited for.", _DROP),
    "algorithm.gdpo_reward_keys": _NO_GDPO,
    "algorithm.gdpo_reward_weights": _NO_GDPO,
    "algorithm.filter_groups": Reason("This version trains on every group.", _DROP),
    "algorithm.pf_ppo": Reason("This version does not resample rollouts by reward.", _DROP),
    "algorithm.rollout_correction": Reason(
        "Old log-probs are always computed by the actor, and the two are compared in metrics instead of corrected.",
        _DROP,
    ),
    "algorithm.use_pf_ppo": Reason("This version does not resample rollouts by reward.", _DROP),
    "critic.enable": Reason(
        "A critic exists exactly when the advantages need one.", "Set algorithm.adv_estimator=gae for a critic."
    ),
    "critic.forward_max_token_len_per_gpu": _CRITIC_PLAN,
    "critic.forward_micro_batch_size": _CRITIC_PLAN,
    "critic.forward_micro_batch_size_per_gpu": _CRITIC_PLAN,
    "data.audio_key": _TEXT_ONLY,
    "data.cache_dir": Reason("Files are read where they lie, without a cache.", _DROP),
    "data.custom_cls": Reason(
        "Prompts are read by verl-data.", "Write the rows that you want with verl_data's processors."
    ),
    "data.datagen": Reason(
        "This version trains on the rows of its files alone.",
        "Generate the rows beforehand with verl_data's processors.",
    ),
    "data.dataloader_num_workers": Reason(
        "Prompts are tokenised in the trainer's process, while it waits for nothing.", _DROP
    ),
    "data.filter_overlong_prompts_workers": Reason("Prompt lengths are measured in the trainer's process.", _DROP),
    "data.function_tool_path": _NO_TOOLS,
    "data.gen_batch_size": Reason(
        "Every step generates for data.train_batch_size prompts.", "Set data.train_batch_size."
    ),
    "data.image_key": _TEXT_ONLY,
    "data.image_patch_size": _TEXT_ONLY,
    "data.mm_processor_kwargs": _TEXT_ONLY,
    "data.return_full_prompt": Reason("Rendered prompts are always at hand.", _DROP),
    "data.return_multi_modal_inputs": _TEXT_ONLY,
    "data.return_raw_chat": Reason("The prompt's messages are always at hand.", _DROP),
    "data.return_raw_input_ids": Reason("The prompt's token ids are always at hand.", _DROP),
    "data.sampler": Reason(
        "Rows come in a seeded random order, or in the order of the file.",
        "Order the rows in the file and set data.shuffle=false.",
    ),
    "data.tool_config_path": _NO_TOOLS,
    "data.trust_remote_code": Reason(
        "The tokenizer is the model's.",
        "Set actor_rollout_ref.model.trust_remote_code=true if you trust the code in that folder.",
    ),
    "data.use_shm": Reason("Files are read where they lie.", "Copy them to /dev/shm yourself and name that path."),
    "data.val_batch_size": Reason(
        "Validation generates for the whole file, as many sequences at a time as the rollout holds.", _DROP
    ),
    "data.validation_shuffle": Reason("Validation keeps the order of the file, so that runs can be compared.", _DROP),
    "data.video_key": _TEXT_ONLY,
    "distillation": Reason("This version does not distil from a teacher.", _DROP),
    "global_profiler": _NO_PROFILER,
    "hydra": Reason(
        "Hydra's job runtime is not used: a run has one directory of its own.",
        "Set trainer.default_local_dir for that directory.",
    ),
    "model_engine": Reason("This version trains with FSDP2 only.", "Leave it out."),
    "ray_kwargs": Reason("This version runs in one process, without Ray.", _DROP),
    "reward.num_workers": Reason("Rewards are computed in the trainer's process.", _DROP),
    "reward.reward_kwargs.max_resp_len": _NO_OVERLONG,
    "reward.reward_kwargs.overlong_buffer_cfg": _NO_OVERLONG,
    "reward.reward_manager": Reason(
        "There is one way to score: a function per response.",
        "Set reward.custom_reward_function.path for a function of your own.",
    ),
    "reward.reward_model": _NO_REWARD_MODEL,
    "reward.sandbox_fusion": Reason(
        "This version has no reward that runs code.", "Call your sandbox from a reward function."
    ),
    "reward_model": _NO_REWARD_MODEL,
    "sandbox_fusion": Reason("This version has no reward that runs code.", "Call your sandbox from a reward function."),
    "skip": Reason("This version generates in every step.", _DROP),
    "trainer.balance_batch": Reason("Work is always balanced over micro-batches and ranks.", _DROP),
    "trainer.del_local_ckpt_after_load": Reason("A checkpoint is never deleted by reading it.", "Delete it yourself."),
    "trainer.esi_redundant_time": Reason("This version knows no instance expiry.", "Set trainer.save_freq."),
    "trainer.ray_wait_register_center_timeout": Reason("This version runs in one process, without Ray.", _DROP),
    "trainer.remove_previous_ckpt_in_save": Reason(
        "Checkpoints are rotated by their number.", "Set trainer.max_actor_ckpt_to_keep=1 to keep the newest alone."
    ),
    "trainer.rollout_data_dir": Reason(
        "Training responses are not stored.", "Set trainer.log_val_generations to see validation responses."
    ),
    "trainer.use_legacy_worker_impl": Reason("There is one implementation of the workers.", _DROP),
    "trainer.use_v1": Reason("There is one trainer.", _DROP),
    "trainer.v1": Reason("This version trains in step with generation.", _DROP),
    "trainer.validation_data_dir": Reason(
        "Validation responses always go to val_samples.jsonl in the run directory.", _DROP
    ),
    "transfer_queue": Reason("Batches pass through the one driver.", _DROP),
}

for _section in _ENGINES:
    REASONS |= {
        f"{_section}.megatron": _NO_MEGATRON,
        f"{_section}.profiler": _NO_PROFILER,
        f"{_section}.rollout_n": _FOLLOWS_N,
        f"{_section}.strategy": Reason("The engine is FSDP2 (fully_shard), whichever FSDP is asked for.", _DROP),
        f"{_section}.ulysses_sequence_parallel_size": _ONE_DEVICE,
    }
for _section in ("actor_rollout_ref.actor", "actor_rollout_ref.ref"):
    REASONS |= {
        f"{_section}.entropy_checkpointing": _CHUNKED,
        f"{_section}.entropy_from_logits_chunk_size": _CHUNKED,
        f"{_section}.entropy_from_logits_with_chunking": _CHUNKED,
        f"{_section}.pad_to_length": _PACKED,
        f"{_section}.router_replay": Reason("This version does not replay expert routing.", _DROP),
        f"{_section}.use_torch_compile": Reason("Nothing is compiled.", _DROP),
    }
for _section in ("actor_rollout_ref.actor", "critic"):
    REASONS |= {
        f"{_section}.checkpoint": Reason("A checkpoint always holds model, optimiser and random state.", _DROP),
        f"{_section}.data_loader_seed": Reason("One seed decides the run.", "Set trainer.seed."),
    }
REASONS |= {
    "actor_rollout_ref.actor.calculate_entropy": Reason("Entropy is always computed and logged.", _DROP),
    "actor_rollout_ref.actor.calculate_sum_pi_squared": Reason("No estimator of this version needs it.", _DROP),
    "actor_rollout_ref.actor.freeze_vision_tower": _TEXT_ONLY,
    "actor_rollout_ref.actor.policy_loss": Reason(
        "It belongs to a policy loss that this version does not have.",
        "Use actor_rollout_ref.actor.policy_loss.loss_mode=vanilla without it.",
    ),
    "actor_rollout_ref.actor.qat": Reason("This version does not train quantised weights.", _DROP),
    "actor_rollout_ref.actor.tau_neg": Reason(
        "It belongs to the policy loss sapo, which this version does not have.", _DROP
    ),
    "actor_rollout_ref.actor.tau_pos": Reason(
        "It belongs to the policy loss sapo, which this version does not have.", _DROP
    ),
    "actor_rollout_ref.actor.use_fused_kernels": Reason("There are no fused kernels.", _DROP),
    "actor_rollout_ref.actor.use_prefix_grouper": Reason("Prompts are computed with each of their responses.", _DROP),
    "actor_rollout_ref.actor.use_remove_padding": _PACKED,
}
for _section in _FSDP:
    REASONS |= {
        f"{_section}.entropy_checkpointing": _CHUNKED,
        f"{_section}.entropy_from_logits_chunk_size": _CHUNKED,
        f"{_section}.entropy_from_logits_with_chunking": _CHUNKED,
        f"{_section}.forward_only": Reason("The trainer decides which models are trained.", _DROP),
        f"{_section}.forward_prefetch": _ONE_DEVICE,
        f"{_section}.fsdp_size": _ONE_DEVICE,
        f"{_section}.full_determinism": Reason("Runs are deterministic on a CPU; no switch makes a GPU so.", _DROP),
        f"{_section}.offload_policy": _NO_OFFLOAD,
        f"{_section}.optimizer_offload": _NO_OFFLOAD,
        f"{_section}.pad_to_length": _PACKED,
        f"{_section}.pad_to_length_bucket": _PACKED,
        f"{_section}.param_offload": _NO_OFFLOAD,
        f"{_section}.qat": Reason("This version does not train quantised weights.", _DROP),
        f"{_section}.seed": Reason("One seed decides the run.", "Set trainer.seed."),
        f"{_section}.strategy": Reason("The engine is FSDP2 (fully_shard), whichever FSDP is asked for.", _DROP),
        f"{_section}.turbo_config": Reason("The engine is PyTorch's own FSDP2.", _DROP),
        f"{_section}.ulysses_sequence_parallel_size": _ONE_DEVICE,
        f"{_section}.use_orig_params": Reason("FSDP2 always keeps the original parameters.", _DROP),
        f"{_section}.use_torch_compile": Reason("Nothing is compiled.", _DROP),
        f"{_section}.wrap_policy": Reason("The engine shards layer by layer.", _DROP),
    }
for _section in ("actor_rollout_ref.actor.fsdp_config", "critic.fsdp"):
    REASONS[f"{_section}.grad_offload"] = _NO_OFFLOAD  # Known from older tutorials.
for _section in OPTIM_SECTIONS:
    REASONS |= {f"{_section}.{_name}": _NO_MEGATRON for _name in MEGATRON_OPTIM}
    REASONS |= {
        f"{_section}.optimizer": Reason("The optimiser is AdamW.", _DROP),
        f"{_section}.optimizer_impl": Reason("The optimiser is PyTorch's AdamW.", _DROP),
        f"{_section}.override_optimizer_config": Reason(
            "The optimiser is PyTorch's AdamW with lr, betas and weight_decay.", _DROP
        ),
        f"{_section}.total_training_steps": Reason(
            "The trainer counts its own optimiser steps.",
            "Set trainer.total_training_steps for the length of the run.",
        ),
        f"{_section}.zero_indexed_step": Reason(
            "The first optimiser step always has the first learning rate of the schedule.", _DROP
        ),
    }
for _section in _MODELS:
    REASONS |= {
        f"{_section}.custom_chat_template": Reason(
            "The chat template is the tokenizer's.", "Write it into the folder's chat_template.jinja."
        ),
        f"{_section}.enable_activation_offload": _NO_OFFLOAD,
        f"{_section}.exclude_modules": Reason("This version trains every weight, without LoRA.", _DROP),
        f"{_section}.external_lib": Reason(
            "Models are transformers' own.", "Set trust_remote_code=true if the folder brings its code."
        ),
        f"{_section}.fused_kernel_options": Reason("There are no fused kernels.", _DROP),
        f"{_section}.hf_config_path": Reason(
            "The model's config.json is read from its folder.", "Set path, and override_config for single values."
        ),
        f"{_section}.lora": Reason("This version trains every weight, without LoRA.", _DROP),
        f"{_section}.lora_adapter_path": Reason(
            "This version trains every weight, without LoRA.", "Merge the adapter into the model first."
        ),
        f"{_section}.lora_alpha": Reason("This version trains every weight, without LoRA.", _DROP),
        f"{_section}.lora_rank": Reason("This version trains every weight, without LoRA.", _DROP),
        f"{_section}.mtp": Reason("This version does not train multi-token prediction.", _DROP),
        f"{_section}.target_modules": Reason("This version trains every weight, without LoRA.", _DROP),
        f"{_section}.tiled_mlp": Reason(
            "MLPs are computed in one piece.", "Lower the micro-batch size when memory runs out."
        ),
        f"{_section}.use_fused_kernels": Reason("There are no fused kernels.", _DROP),
        f"{_section}.use_liger": Reason("There are no fused kernels.", _DROP),
        f"{_section}.use_remove_padding": _PACKED,
        f"{_section}.use_shm": Reason(
            "Files are read where they lie.", "Copy the folder to /dev/shm yourself and name that path."
        ),
    }
REASONS |= {
    f"actor_rollout_ref.rollout.{_key}": _reason
    for _key, _reason in {
        "agent": _NO_TOOLS,
        "calculate_log_probs": Reason("The rollout's log-probs are always kept and compared with the actor's.", _DROP),
        "checkpoint_engine": Reason("Weights pass to the rollout inside one process.", _DROP),
        "cudagraph_capture_sizes": _VLLM_ONLY,
        "data_parallel_size": _ONE_DEVICE,
        "disable_log_stats": _VLLM_ONLY,
        "disaggregation": _VLLM_ONLY,
        "do_sample": Reason("Training samples at rollout.temperature.", "Set actor_rollout_ref.rollout.temperature."),
        "enable_chunked_prefill": _VLLM_ONLY,
        "enable_prefix_caching": _VLLM_ONLY,
        "enable_rollout_routing_replay": Reason("This version does not replay expert routing.", _DROP),
        "enforce_eager": _VLLM_ONLY,
        "engine_kwargs": _VLLM_ONLY,
        "expert_parallel_size": _ONE_DEVICE,
        "free_cache_engine": Reason("The KV cache lives only while a batch is generated.", _DROP),
        "full_determinism": Reason("A response depends on its seed, prompt and weights alone, in any batch.", _DROP),
        "gpu_memory_utilization": Reason(
            "The KV cache of rollout.name=hf grows with the sequences it holds; no share of the memory is set aside.",
            _DROP,
        ),
        "layered_summon": _VLLM_ONLY,
        "load_format": Reason("The rollout starts from the model folder.", _DROP),
        "log_prob_max_token_len_per_gpu": _ACTOR_PLAN,
        "log_prob_micro_batch_size_per_gpu": _ACTOR_PLAN,
        "log_prob_use_dynamic_bsz": _ACTOR_PLAN,
        "logprobs_mode": Reason("Log-probs are those of the sampling temperature over the whole vocabulary.", _DROP),
        "max_model_len": Reason(
            "Sequences are at most data.max_prompt_length + data.max_response_length tokens.", "Set those two."
        ),
        "max_num_batched_tokens": _VLLM_ONLY,
        "mode": Reason("A step waits for its responses.", _DROP),
        "moe_load_balance_metrics_interval": Reason("This version logs no expert load.", _DROP),
        "mtp": Reason("This version does not generate by multi-token prediction.", _DROP),
        "multi_stage_wake_up": _VLLM_ONLY,
        "multi_turn": _NO_TOOLS,
        "n_gpus_per_node": _ONE_DEVICE,
        "nnodes": _ONE_DEVICE,
        "over_sample_rate": Reason("Exactly the asked number of responses is generated.", _DROP),
        "pipeline_model_parallel_size": _ONE_DEVICE,
        "profiler": _NO_PROFILER,
        "prometheus": Reason("Metrics go to the loggers of trainer.logger.", _DROP),
        "prompt_length": Reason("It follows data.max_prompt_length.", "Set data.max_prompt_length."),
        "qat": Reason("This version does not generate with quantised weights.", _DROP),
        "quantization": Reason("This version does not generate with quantised weights.", _DROP),
        "quantization_config_file": Reason("This version does not generate with quantised weights.", _DROP),
        "response_length": Reason("It follows data.max_response_length.", "Set data.max_response_length."),
        "scheduling_policy": _VLLM_ONLY,
        "skip_tokenizer_init": _VLLM_ONLY,
        "tensor_model_parallel_size": _ONE_DEVICE,
        "trace": Reason("Generated samples go to val_samples.jsonl in the run directory.", _DROP),
        "val_kwargs.do_sample": Reason(
            "Validation samples exactly when its temperature is above 0.",
            "Set actor_rollout_ref.rollout.val_kwargs.temperature.",
        ),
    }.items()
}
