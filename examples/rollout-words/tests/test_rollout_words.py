"""The command, called as `rollouts words` calls it, on a run that the recorder wrote."""

import subprocess
import sys

from rollout_plugins import RolloutRecorder


def said(folder, rows):
    with RolloutRecorder(dir=folder) as recorder:
        recorder.record(1, [{"prompt": "?", "completion": text, "rewards": {"r": reward}} for text, reward in rows])
    command = [sys.executable, "-m", "rollout_plugins.cli.main", "words", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_words_of_good_answers(tmp_path):
    done = said(tmp_path, [("Yes, blue.", 1.0), ("Yes, blue!", 1.0), ("No.", 0.0), ("Yes.", 0.0)])
    assert done.stdout.split("\n")[:2] == ["     2 more blue", "     1 more yes"]


def test_a_run_without_rewards(tmp_path):
    done = said(tmp_path, [("Yes.", None)])
    assert (done.returncode, done.stdout) == (1, "no rollout of this run has a reward\n")
