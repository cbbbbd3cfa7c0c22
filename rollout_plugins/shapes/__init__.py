"""Read rollouts as other frameworks keep them in memory, for `RolloutRecorder.record`, without importing any of them.

from rollout_plugins.shapes import areal
recorder.record(step, areal.rollouts(batch, tokenizer))
"""
