"""`rollouts words RUN`: words that answers above the mean reward use more often than the others."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from collections import Counter

from rollout_plugins import Rollout, open_run


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's folder")
    parser.add_argument("--top", type=int, default=10, help="how many words (default: 10)")


def run(options: Namespace) -> int:
    rollouts = [one for one in open_run(options.run).rollouts() if one.reward is not None]
    if not rollouts:
        print("no rollout of this run has a reward")
        return 1
    mean = sum(one.reward for one in rollouts) / len(rollouts)
    good = Counter(word for one in rollouts if one.reward > mean for word in _words(one))
    bad = Counter(word for one in rollouts if one.reward <= mean for word in _words(one))
    for word, times in (good - bad).most_common(options.top):
        print(f"{times:6} more {word}")
    return 0


def _words(rollout: Rollout) -> set[str]:
    texts = [m["content"] for m in rollout.completion if m["role"] == "assistant" and isinstance(m["content"], str)]
    return set(re.findall(r"\w+", " ".join(texts).lower()))
