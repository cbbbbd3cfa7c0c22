"""A run that most tests of the viewer look at."""

from dataclasses import replace

import pytest
from reading import called, one, write

from rollout_plugins import open_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Twelve steps of eight rollouts in groups of four; the later, the better."""
    folder = tmp_path_factory.mktemp("view")
    made = [
        one(
            step,
            index,
            group=index // 4,
            group_size=4,
            reward=step / 10 + index,
            advantage=index - 3.5,
            prompt=({"role": "system", "content": "Be brief."}, {"role": "user", "content": f"question {index // 4}"}),
            completion=(
                {
                    "role": "assistant",
                    "content": "Let me look.",
                    "reasoning_content": f"thought {step}",
                    "tool_calls": [{"type": "function", "function": {"name": "find", "arguments": {"page": index}}}],
                },
                {"role": "tool", "name": "find", "content": f"found {index}"},
                {"role": "assistant", "content": f"It is {'sunny' if index % 2 else 'rainy'} on day {step}."},
            ),
            tool_calls=(replace(called("find", page=index), reply=1, result=f"found {index}", seconds=0.25),),
            completion_tokens=(index * 37 + step) % 150,
            marks={"cap": "kept: the best of its group"},
            columns={"answer": "42"},
        )
        for step in range(1, 13)
        for index in range(8)
    ]
    path = write(folder, made)
    open_run(path).annotate("judge", [{"id": rollout.id, "score": rollout.index / 8} for rollout in made])
    return path
