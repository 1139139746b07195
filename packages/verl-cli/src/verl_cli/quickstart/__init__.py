"""PPO on a CPU in two minutes: data, model, warm-up, training and a report, all made from nothing.

Reward workers import `quickstart.rewards` from here, so that nothing else is imported with it.
"""
