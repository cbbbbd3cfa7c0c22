"""Rollouts as other frameworks hold them in memory, for `RolloutRecorder.record`. None of the frameworks is imported.

from rollout_plugins.shapes import areal
recorder.record(step, areal.rollouts(batch, tokenizer))
"""
