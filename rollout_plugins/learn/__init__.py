"""Learn from recorded runs: score again, look at prompts, compare, export training data, replay.

Each command is a thin layer over a function on Arrow batches. Results are annotations or new files; a run is never
edited. Nothing here takes part in recording.
"""
