"""The page of a run that is pushed to the Hub as a dataset: what it is, what is in it, and how to load it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from rollout_plugins.content.names import listed
from rollout_plugins.store.read import StoredRun

_MEANINGS = {
    "id": "of the rollout; the same in the run's folder and in every viewer",
    "step": "optimizer step that it trained",
    "generation": "number of the batch in which it was made",
    "group": "answers to the same prompt in a generation have the same one",
    "reward": "the total that training used",
    "rewards": "what each reward function gave",
    "advantage": "what the trainer made of the reward",
    "finish": "why it ended: stop, length, tool_limit, error or unknown",
    "tool_calls": "each call with arguments, result, status and duration",
    "prompt": "messages: role, content, reasoning, tool calls",
    "completion": "messages that the model and its tools added",
    "images": "pictures in it: `path` is a file of this repository",
    "columns": "JSON: the dataset's other columns",
    "extra": "JSON: what plugins added",
    "marks": "JSON: what was noted about it",
    "tokens": "token ids, masks and log-probabilities, where they were kept",
}


_TEXT = """{front}
# Rollouts of {name}

Every rollout{which} of a reinforcement-learning run, recorded with `rollout-plugins`: prompts, completions, tool
calls, rewards and advantages.

{facts}

{chosen}## Load it

```python
from datasets import load_dataset

rollouts = load_dataset("{repo}", split="{split}")
```

With the conversations in a viewer, or in SQL:

```bash
rollouts pull hf://datasets/{repo} .
rollouts view {folder}
rollouts sql {folder} 'select step, avg(reward) from rollouts group by step order by step'
```

## Columns

{columns}
"""


def card(run: StoredRun, splits: Mapping[str, int], schema: pa.Schema, repo: str, chosen: Mapping[str, Any]) -> str:
    """The text of README.md. `splits`: how many rollouts each has; `chosen`: the filters that selected them."""
    columns = [[f"`{each.name}`", f"`{_kind(each.type)}`", _MEANINGS.get(each.name, "")] for each in schema]
    return _TEXT.format(
        front=_front(splits),
        name=_plain(run.name),
        which=" chosen as below" if chosen else "",
        facts=_table(["", ""], _facts(run, splits)),
        chosen=_chosen(chosen),
        repo=repo,
        split=next(iter(splits), "train"),
        folder=repo.rpartition("/")[2],
        columns=_table(["column", "type", ""], columns),
    )


def _front(splits: Mapping[str, int]) -> str:
    files = [f"  - split: {name}\n    path: data/{name}/*.parquet" for name in splits]
    head = ["---", "pretty_name: Rollouts", "tags:", "- reinforcement-learning", "- rollouts", "- rollout-plugins"]
    return "\n".join([*head, "configs:", "- config_name: default", "  data_files:", *files, "---", ""])


def _facts(run: StoredRun, splits: Mapping[str, int]) -> list[list[str]]:
    info = run.info
    facts = {
        "run": info.id,
        "trainer": info.trainer or info.host,
        "model": info.model,
        "rollouts": listed(splits),
        "steps": f"{len(run.steps):,}",
        "rewards": ", ".join(info.reward_names),
        "tools": ", ".join(str(tool.get("function", tool).get("name", "")) for tool in info.tools),
        "lost while recording": listed(run.drops) or "nothing",
        "made with": ", ".join(f"{name} {version}" for name, version in info.versions.items()),
    }
    return [[name, _plain(value)] for name, value in facts.items() if value]


def _chosen(chosen: Mapping[str, Any]) -> str:
    filters = json.dumps(dict(chosen), indent=1, default=str)
    return f"## Which rollouts\n\n```json\n{filters}\n```\n\n" if chosen else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def _plain(text: str) -> str:
    """On one line, and without what Markdown would read."""
    line = " ".join(text.split())
    return "".join(f"\\{letter}" if letter in r"|<>*`[]\_" else letter for letter in line)


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list of {_kind(kind.value_type)}"
    if pa.types.is_struct(kind):
        return "struct"
    return "text" if pa.types.is_large_string(kind) or pa.types.is_string(kind) else str(kind)
