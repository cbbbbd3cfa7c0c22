"""What must hold of the built wheel, in an environment with nothing but it and its dependencies."""

import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path

HEAVY = ("torch", "transformers", "trl", "wandb", "trackio", "pyarrow")

tops = {name.split("/")[0] for name in zipfile.ZipFile(sys.argv[1]).namelist()}
tops = {top for top in tops if not top.endswith(".dist-info")}
assert tops == {"rollout_plugins", "rollout_hookspecs"}, tops

code = f"import sys, rollout_plugins; print([m for m in {HEAVY!r} if m in sys.modules])"
assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"

started = time.perf_counter()
assert "usage: rollouts" in subprocess.check_output(["rollouts", "--help"], text=True)
print(f"rollouts --help: {time.perf_counter() - started:.2f} s")

listed = json.loads(subprocess.check_output(["rollouts", "plugins", "--json"], text=True))
names = {row["name"] for row in listed}
broken = [row for row in listed if "does not import" in (row["reason"] or "")]
assert not broken, broken
known = ["images", "dedup", "cap", "redact", "metrics", "trackio", "wandb", "console", "jsonl", "scout", "trainers"]
assert names.issuperset(known), names

failed = subprocess.run(["rollouts", "demo"], text=True, capture_output=True, check=False)
assert failed.returncode == 1, failed
assert "pip install 'rollout-plugins[demo]'" in failed.stderr, failed.stderr
record = """
from rollout_plugins import RolloutRecorder
with RolloutRecorder(dir="runs") as recorder:
    recorder.record(1, [{"prompt": "2+2?", "completion": "4", "rewards": {"correct": 1.0}}])
"""
subprocess.run([sys.executable, "-c", record], check=True)
subprocess.run(["rollouts", "report", "runs", "-o", "report.html"], check=True)
assert b"Content-Security-Policy" in Path("report.html").read_bytes()
print("the wheel holds what it should, imports lightly, and names what is missing; it records and reports")
