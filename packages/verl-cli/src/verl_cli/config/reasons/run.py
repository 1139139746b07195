"""Data, rewards, the algorithm and the trainer."""

from verl_cli.config.reasons.reason import DROP, NO_PROFILER, NO_TOOLS, TEXT_ONLY, Reason, update_plan

_REWARD_SERVER = Reason(
    "A reward model runs in the trainer's process, without servers or devices of its own.",
    "Leave it out; reward.reward_model.kwargs={device: cuda:1} moves it, and verl_algos.rewards:JudgeRewardModel asks "
    "a server that you run.",
)
_OLD_REWARD_MODEL = Reason(
    "A reward model is configured by reward.reward_model.{path,model_path,kwargs} alone.",
    "Set reward.reward_model.kwargs, such as {batch_tokens: 16384, max_length: 2048, dtype: bfloat16} for a Hugging "
    "Face folder.",
)
_REWARD_CLASS = Reason(
    "Rewards come from a function or a model, and what is done with them is reward.reward_manager.name=naive or dapo.",
    "Set reward.custom_reward_function.path, or reward.reward_model.path for a class that scores batches.",
)
_NO_SANDBOX_SERVER = Reason(
    "Code is run on this machine, isolated and with limits (the rule code), not by a server.",
    "Leave it out. reward.custom_reward_function.reward_kwargs={rule: code, memory_mb: 1024} sets limits of a test; "
    "sandbox: none there runs code that you trust where the machine cannot isolate. Or call your server in a function.",
)
_REWARD_LOOP = Reason(
    "Worker processes score all responses of a step together, once they are generated; an async function has up to 64 "
    "calls in flight. Nothing else of the step runs meanwhile.",
    "Leave it out; where timing_s/reward is long, raise reward.num_workers or make the function async.",
)
_CRITIC_PLAN = update_plan("critic")

RUN: dict[str, Reason] = {
    "actor_rollout_ref.hybrid_engine": Reason("Actor and rollout always share the run's devices.", DROP),
    "actor_rollout_ref.nccl_timeout": Reason("This version runs one rank, so nothing is waited for.", DROP),
    "algorithm.filter_groups.max_inflight_gen_batches": Reason(
        "Responses are generated in step with training, one batch of prompts after the other.", DROP
    ),
    **{
        f"algorithm.rollout_is{name}": Reason(
            "The rollout correction has a section of its own.",
            "Set algorithm.rollout_correction.rollout_is=token or sequence, and rollout_is_threshold beside it.",
        )
        for name in ("", "_level", "_mode", "_threshold", "_threshold_lower")
    },
    **dict.fromkeys(
        ("algorithm.rollout_is_veto_threshold", "algorithm.rollout_correction.rollout_token_veto_threshold"),
        Reason(
            "Sequences are rejected by named criteria instead of a veto of single tokens.",
            "Set algorithm.rollout_correction.rollout_rs=seq_max_k2 and a rollout_rs_threshold.",
        ),
    ),
    "actor_rollout_ref.actor.tis_imp_ratio_cap": Reason(
        "The rollout correction truncates importance weights.",
        "Set algorithm.rollout_correction.rollout_is=token and rollout_is_threshold to this number.",
    ),
    "algorithm.pf_ppo": Reason("This version does not resample rollouts by reward.", DROP),
    "algorithm.use_pf_ppo": Reason("This version does not resample rollouts by reward.", DROP),
    "critic.forward_max_token_len_per_gpu": _CRITIC_PLAN,
    "critic.forward_micro_batch_size": _CRITIC_PLAN,
    "critic.forward_micro_batch_size_per_gpu": _CRITIC_PLAN,
    "data.audio_key": TEXT_ONLY,
    "data.cache_dir": Reason("Files are read where they lie, without a cache.", DROP),
    "data.custom_cls": Reason(
        "Prompts are read by verl-data.", "Write the rows that you want with verl_data's processors."
    ),
    "data.datagen": Reason(
        "This version trains on the rows of its files alone.",
        "Generate the rows beforehand with verl_data's processors.",
    ),
    "data.dataloader_num_workers": Reason(
        "Prompts are tokenised in the trainer's process, while it waits for nothing.", DROP
    ),
    "data.filter_overlong_prompts_workers": Reason("Prompt lengths are measured in the trainer's process.", DROP),
    "data.function_tool_path": NO_TOOLS,
    "data.gen_batch_size": Reason(
        "Prompts are drawn data.train_batch_size at a time, also the further ones of algorithm.filter_groups.",
        "Leave it out; where it was larger, raise algorithm.filter_groups.max_num_gen_batches by the same factor.",
    ),
    "data.image_key": TEXT_ONLY,
    "data.image_patch_size": TEXT_ONLY,
    "data.mm_processor_kwargs": TEXT_ONLY,
    "data.return_full_prompt": Reason("Rendered prompts are always at hand.", DROP),
    "data.return_multi_modal_inputs": TEXT_ONLY,
    "data.return_raw_chat": Reason("The prompt's messages are always at hand.", DROP),
    "data.return_raw_input_ids": Reason("The prompt's token ids are always at hand.", DROP),
    "data.sampler": Reason(
        "Rows come in a seeded random order, in that of the file, or in ascending order of a number.",
        "Set data.order_by=COLUMN or FILE.py:FUNCTION (easy rows first), data.train_weights to mix files, or "
        "data.shuffle=false.",
    ),
    "data.tool_config_path": NO_TOOLS,
    "data.trust_remote_code": Reason(
        "The tokenizer is the model's.",
        "Set actor_rollout_ref.model.trust_remote_code=true if you trust the code in that folder.",
    ),
    "data.use_shm": Reason("Files are read where they lie.", "Copy them to /dev/shm yourself and name that path."),
    "data.val_batch_size": Reason(
        "Validation generates for the whole file, as many sequences at a time as the rollout holds.", DROP
    ),
    "data.validation_shuffle": Reason("Validation keeps the order of the file, so that runs can be compared.", DROP),
    "data.video_key": TEXT_ONLY,
    "distillation": Reason("This version does not distil from a teacher.", DROP),
    "global_profiler": NO_PROFILER,
    "hydra": Reason(
        "Hydra's job runtime is not used: a run has one directory of its own.",
        "Set trainer.default_local_dir for that directory.",
    ),
    "model_engine": Reason("This version trains with FSDP2 only.", "Leave it out."),
    "ray_kwargs": Reason("This version runs in one process, without Ray.", DROP),
    "reward.launch_reward_fn_async": _REWARD_LOOP,
    "reward.reward_manager.module": _REWARD_CLASS,
    "reward.reward_manager.source": _REWARD_CLASS,
    "reward.reward_model.enable_resource_pool": _REWARD_SERVER,
    "reward.reward_model.n_gpus_per_node": _REWARD_SERVER,
    "reward.reward_model.nnodes": _REWARD_SERVER,
    "reward.reward_model.rollout": _REWARD_SERVER,
    "reward.sandbox_fusion": _NO_SANDBOX_SERVER,
    "reward.use_reward_loop": _REWARD_LOOP,
    "reward_model": _OLD_REWARD_MODEL,
    "reward_model.enable_resource_pool": _REWARD_SERVER,
    "reward_model.launch_reward_fn_async": _REWARD_LOOP,
    "reward_model.n_gpus_per_node": _REWARD_SERVER,
    "reward_model.nnodes": _REWARD_SERVER,
    "reward_model.profiler": NO_PROFILER,
    "reward_model.reward_loop_class_name": _REWARD_CLASS,
    "reward_model.reward_loop_module_path": _REWARD_CLASS,
    "reward_model.reward_loop_source": _REWARD_CLASS,
    "reward_model.rollout": _REWARD_SERVER,
    "reward_model.sandbox_fusion": _NO_SANDBOX_SERVER,
    "reward_model.use_reward_loop": _REWARD_LOOP,
    "sandbox_fusion": _NO_SANDBOX_SERVER,
    "skip": Reason("This version generates in every step.", DROP),
    "trainer.balance_batch": Reason("Work is always balanced over micro-batches and ranks.", DROP),
    "trainer.del_local_ckpt_after_load": Reason("A checkpoint is never deleted by reading it.", "Delete it yourself."),
    "trainer.esi_redundant_time": Reason("This version knows no instance expiry.", "Set trainer.save_freq."),
    "trainer.ray_wait_register_center_timeout": Reason("This version runs in one process, without Ray.", DROP),
    "trainer.remove_previous_ckpt_in_save": Reason(
        "Checkpoints are rotated by their number.", "Set trainer.max_actor_ckpt_to_keep=1 to keep the newest alone."
    ),
    "trainer.rollout_data_dir": Reason(
        "Training responses are not stored.", "Set trainer.log_val_generations to see validation responses."
    ),
    "trainer.use_legacy_worker_impl": Reason("There is one implementation of the workers.", DROP),
    "trainer.use_v1": Reason("There is one trainer.", DROP),
    "trainer.v1": Reason("This version trains in step with generation.", DROP),
    "trainer.validation_data_dir": Reason(
        "Validation responses always go to val_samples.jsonl in the run directory.", DROP
    ),
    "transfer_queue": Reason("Batches pass through the one driver.", DROP),
}
