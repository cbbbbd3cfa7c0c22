"""Run by test_mirror_s3: records a small part and one of many megabytes, until it is killed."""

import os
import sys
import time

from rollout_plugins import RolloutRecorder

recorder = RolloutRecorder(
    dir=sys.argv[1], run_id="mine", mirror="s3://bucket/runs", config={"mirror": {"seal_seconds": 1e-9}}
)
recorder.record(1, [{"prompt": "q", "completion": "a"}])
recorder.flush()
recorder.record(2, [{"prompt": "q", "completion": os.urandom(30_000_000).hex()}])
recorder.flush()
time.sleep(600)  # until it is killed
