"""Actor, reference and critic: the engine, its optimiser, and the model."""

from verl_cli.config.reasons.reason import DROP, NO_PROFILER, ONE_DEVICE, TEXT_ONLY, Reason

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

_PACKED = Reason("Batches are always packed; padding does not exist in this system.", DROP)
_FOLLOWS_N = Reason("It follows actor_rollout_ref.rollout.n.", "Set actor_rollout_ref.rollout.n.")
_NO_MEGATRON = Reason("This version trains with FSDP2 only.", "Leave it out.")
_NO_OFFLOAD = Reason(
    "This version keeps every model where it computes.", "Lower the micro-batch size when memory runs out."
)
_CHUNKED = Reason(
    "The engine bounds the memory of log-probs and entropy by its micro-batches.", "Lower the micro-batch size."
)

TRAINING: dict[str, Reason] = {}
for _section in _ENGINES:
    TRAINING |= {
        f"{_section}.megatron": _NO_MEGATRON,
        f"{_section}.profiler": NO_PROFILER,
        f"{_section}.rollout_n": _FOLLOWS_N,
        f"{_section}.strategy": Reason("The engine is FSDP2 (fully_shard), whichever FSDP is asked for.", DROP),
        f"{_section}.ulysses_sequence_parallel_size": ONE_DEVICE,
    }
for _section in ("actor_rollout_ref.actor", "actor_rollout_ref.ref"):
    TRAINING |= {
        f"{_section}.entropy_checkpointing": _CHUNKED,
        f"{_section}.entropy_from_logits_chunk_size": _CHUNKED,
        f"{_section}.entropy_from_logits_with_chunking": _CHUNKED,
        f"{_section}.pad_to_length": _PACKED,
        f"{_section}.router_replay": Reason("This version does not replay expert routing.", DROP),
        f"{_section}.use_torch_compile": Reason("Nothing is compiled.", DROP),
    }
for _section in ("actor_rollout_ref.actor", "critic"):
    TRAINING |= {
        f"{_section}.checkpoint": Reason("A checkpoint always holds all that an exact resume needs.", DROP),
        f"{_section}.data_loader_seed": Reason("One seed decides the run.", "Set trainer.seed."),
    }
TRAINING |= {
    "actor_rollout_ref.actor.calculate_entropy": Reason("Entropy is always computed and logged.", DROP),
    "actor_rollout_ref.actor.calculate_sum_pi_squared": Reason(
        "It is computed where the advantage estimator needs it.", DROP
    ),
    "actor_rollout_ref.actor.freeze_vision_tower": TEXT_ONLY,
    "actor_rollout_ref.actor.qat": Reason("This version does not train quantised weights.", DROP),
    "actor_rollout_ref.actor.use_fused_kernels": Reason("There are no fused kernels.", DROP),
    "actor_rollout_ref.actor.use_prefix_grouper": Reason("Prompts are computed with each of their responses.", DROP),
    "actor_rollout_ref.actor.use_remove_padding": _PACKED,
}
for _section in _FSDP:
    TRAINING |= {
        f"{_section}.entropy_checkpointing": _CHUNKED,
        f"{_section}.entropy_from_logits_chunk_size": _CHUNKED,
        f"{_section}.entropy_from_logits_with_chunking": _CHUNKED,
        f"{_section}.forward_only": Reason("The trainer decides which models are trained.", DROP),
        f"{_section}.forward_prefetch": ONE_DEVICE,
        f"{_section}.fsdp_size": ONE_DEVICE,
        f"{_section}.full_determinism": Reason("Runs are deterministic on a CPU; no switch makes a GPU so.", DROP),
        f"{_section}.offload_policy": _NO_OFFLOAD,
        f"{_section}.optimizer_offload": _NO_OFFLOAD,
        f"{_section}.pad_to_length": _PACKED,
        f"{_section}.pad_to_length_bucket": _PACKED,
        f"{_section}.param_offload": _NO_OFFLOAD,
        f"{_section}.qat": Reason("This version does not train quantised weights.", DROP),
        f"{_section}.seed": Reason("One seed decides the run.", "Set trainer.seed."),
        f"{_section}.strategy": Reason("The engine is FSDP2 (fully_shard), whichever FSDP is asked for.", DROP),
        f"{_section}.turbo_config": Reason("The engine is PyTorch's own FSDP2.", DROP),
        f"{_section}.ulysses_sequence_parallel_size": ONE_DEVICE,
        f"{_section}.use_orig_params": Reason("FSDP2 always keeps the original parameters.", DROP),
        f"{_section}.use_torch_compile": Reason("Nothing is compiled.", DROP),
        f"{_section}.wrap_policy": Reason("The engine shards layer by layer.", DROP),
    }
for _section in ("actor_rollout_ref.actor.fsdp_config", "critic.fsdp"):
    TRAINING[f"{_section}.grad_offload"] = _NO_OFFLOAD  # Known from older tutorials.
for _section in OPTIM_SECTIONS:
    TRAINING |= {f"{_section}.{_name}": _NO_MEGATRON for _name in MEGATRON_OPTIM}
    TRAINING |= {
        f"{_section}.optimizer": Reason("The optimiser is AdamW.", DROP),
        f"{_section}.optimizer_impl": Reason("The optimiser is PyTorch's AdamW.", DROP),
        f"{_section}.override_optimizer_config": Reason(
            "The optimiser is PyTorch's AdamW with lr, betas and weight_decay.", DROP
        ),
        f"{_section}.total_training_steps": Reason(
            "The trainer counts its own optimiser steps.",
            "Set trainer.total_training_steps for the length of the run.",
        ),
        f"{_section}.zero_indexed_step": Reason(
            "The first optimiser step always has the first learning rate of the schedule.", DROP
        ),
    }
for _section in _MODELS:
    TRAINING |= {
        f"{_section}.custom_chat_template": Reason(
            "The chat template is the tokenizer's.", "Write it into the folder's chat_template.jinja."
        ),
        f"{_section}.enable_activation_offload": _NO_OFFLOAD,
        f"{_section}.exclude_modules": Reason("This version trains every weight, without LoRA.", DROP),
        f"{_section}.external_lib": Reason(
            "Models are transformers' own.", "Set trust_remote_code=true if the folder brings its code."
        ),
        f"{_section}.fused_kernel_options": Reason("There are no fused kernels.", DROP),
        f"{_section}.hf_config_path": Reason(
            "The model's config.json is read from its folder.", "Set path, and override_config for single values."
        ),
        f"{_section}.lora": Reason("This version trains every weight, without LoRA.", DROP),
        f"{_section}.lora_adapter_path": Reason(
            "This version trains every weight, without LoRA.", "Merge the adapter into the model first."
        ),
        f"{_section}.lora_alpha": Reason("This version trains every weight, without LoRA.", DROP),
        f"{_section}.lora_rank": Reason("This version trains every weight, without LoRA.", DROP),
        f"{_section}.mtp": Reason("This version does not train multi-token prediction.", DROP),
        f"{_section}.target_modules": Reason("This version trains every weight, without LoRA.", DROP),
        f"{_section}.tiled_mlp": Reason(
            "MLPs are computed in one piece.", "Lower the micro-batch size when memory runs out."
        ),
        f"{_section}.use_fused_kernels": Reason("There are no fused kernels.", DROP),
        f"{_section}.use_liger": Reason("There are no fused kernels.", DROP),
        f"{_section}.use_remove_padding": _PACKED,
        f"{_section}.use_shm": Reason(
            "Files are read where they lie.", "Copy the folder to /dev/shm yourself and name that path."
        ),
    }
