"""The rollout."""

from verl_cli.config.reasons.reason import DROP, NO_PROFILER, NO_TOOLS, ONE_DEVICE, Reason, update_plan

_VLLM_ONLY = Reason(
    "It configures an inference server, and this version generates in the trainer's process (rollout.name=hf).", DROP
)
_ACTOR_PLAN = update_plan("actor_rollout_ref.actor")

ROLLOUT: dict[str, Reason] = {
    f"actor_rollout_ref.rollout.{_key}": _reason
    for _key, _reason in {
        "agent": NO_TOOLS,
        "calculate_log_probs": Reason("The rollout's log-probs are always kept and compared with the actor's.", DROP),
        "checkpoint_engine": Reason("Weights pass to the rollout inside one process.", DROP),
        "cudagraph_capture_sizes": _VLLM_ONLY,
        "data_parallel_size": ONE_DEVICE,
        "disable_log_stats": _VLLM_ONLY,
        "disaggregation": _VLLM_ONLY,
        "do_sample": Reason("Training samples at rollout.temperature.", "Set actor_rollout_ref.rollout.temperature."),
        "enable_chunked_prefill": _VLLM_ONLY,
        "enable_prefix_caching": _VLLM_ONLY,
        "enable_rollout_routing_replay": Reason("This version does not replay expert routing.", DROP),
        "enforce_eager": _VLLM_ONLY,
        "engine_kwargs": _VLLM_ONLY,
        "expert_parallel_size": ONE_DEVICE,
        "free_cache_engine": Reason("The KV cache lives only while a batch is generated.", DROP),
        "full_determinism": Reason("A response depends on its seed, prompt and weights alone, in any batch.", DROP),
        "gpu_memory_utilization": Reason(
            "The KV cache of rollout.name=hf grows with the sequences it holds; no share of the memory is set aside.",
            DROP,
        ),
        "layered_summon": _VLLM_ONLY,
        "load_format": Reason("The rollout starts from the model folder.", DROP),
        "log_prob_max_token_len_per_gpu": _ACTOR_PLAN,
        "log_prob_micro_batch_size_per_gpu": _ACTOR_PLAN,
        "log_prob_use_dynamic_bsz": _ACTOR_PLAN,
        "logprobs_mode": Reason("Log-probs are those of the sampling temperature over the whole vocabulary.", DROP),
        "max_model_len": Reason(
            "Sequences are at most data.max_prompt_length + data.max_response_length tokens.", "Set those two."
        ),
        "max_num_batched_tokens": _VLLM_ONLY,
        "mode": Reason("A step waits for its responses.", DROP),
        "moe_load_balance_metrics_interval": Reason("This version logs no expert load.", DROP),
        "mtp": Reason("This version does not generate by multi-token prediction.", DROP),
        "multi_stage_wake_up": _VLLM_ONLY,
        "multi_turn": NO_TOOLS,
        "n_gpus_per_node": ONE_DEVICE,
        "nnodes": ONE_DEVICE,
        "over_sample_rate": Reason("Exactly the asked number of responses is generated.", DROP),
        "pipeline_model_parallel_size": ONE_DEVICE,
        "profiler": NO_PROFILER,
        "prometheus": Reason("Metrics go to the loggers of trainer.logger.", DROP),
        "prompt_length": Reason("It follows data.max_prompt_length.", "Set data.max_prompt_length."),
        "qat": Reason("This version does not generate with quantised weights.", DROP),
        "quantization": Reason("This version does not generate with quantised weights.", DROP),
        "quantization_config_file": Reason("This version does not generate with quantised weights.", DROP),
        "response_length": Reason("It follows data.max_response_length.", "Set data.max_response_length."),
        "scheduling_policy": _VLLM_ONLY,
        "skip_tokenizer_init": _VLLM_ONLY,
        "tensor_model_parallel_size": ONE_DEVICE,
        "trace": Reason("Generated samples go to val_samples.jsonl in the run directory.", DROP),
        "val_kwargs.do_sample": Reason(
            "Validation samples exactly when its temperature is above 0.",
            "Set actor_rollout_ref.rollout.val_kwargs.temperature.",
        ),
    }.items()
}
