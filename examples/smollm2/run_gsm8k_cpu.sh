#!/usr/bin/env bash
# Three PPO steps of 8 GSM8K prompts with SmolLM2-135M-Instruct on a CPU.
#
#   examples/smollm2/run_gsm8k_cpu.sh MODEL_FOLDER DATA_FOLDER RUN_DIR
#
# MODEL_FOLDER comes from prepare_model.py, DATA_FOLDER (train.parquet, test.parquet) from ../data_preprocess/gsm8k.py.
set -euo pipefail
model=$1 data=$2 run_dir=$3

verl-cli train \
  data.train_files="$data/train.parquet" data.val_files="$data/test.parquet" \
  data.train_batch_size=8 data.val_max_samples=8 data.max_prompt_length=256 data.max_response_length=96 \
  actor_rollout_ref.model.path="$model" \
  actor_rollout_ref.actor.ppo_mini_batch_size=8 actor_rollout_ref.actor.ppo_max_token_len_per_gpu=1024 \
  actor_rollout_ref.actor.optim.lr=1e-6 critic.optim.lr=1e-5 critic.ppo_max_token_len_per_gpu=1024 \
  reward.custom_reward_function.path="$(dirname "$0")/reward.py" \
  trainer.total_training_steps=3 trainer.device=cpu trainer.default_local_dir="$run_dir"
