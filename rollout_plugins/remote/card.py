"""Write the dataset card of a run on the Hub: what the run is, what it contains, and how to load it."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from rollout_plugins.reading.find_runs import find_newest_run
from rollout_plugins.reading.runs import StoredRun
from rollout_plugins.remote.folders import Folder, HubFolder
from rollout_plugins.remote.pruning import are_pruned
from rollout_plugins.store.joined_parts import NOTE, remove_contained_parts
from rollout_plugins.store.parts import find_parts
from rollout_plugins.store.schema import FIELDS
from rollout_plugins.system.labels import count, format_counts

Datasets: TypeAlias = dict[str, dict[str, "str | list[str]"]]
_DATA = re.compile(r"(.*/|)(data|sessions)/([^/]+)/(?:.*/)?[^/]+\.(parquet|jsonl)")
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

rollouts = load_dataset("{repo}", "{config}", split="{split}")
```

{others}With the conversations in a viewer, or in SQL:

```bash
rollouts pull hf://datasets/{path} .
rollouts view {folder}
rollouts sql {folder} 'select step, avg(reward) from rollouts group by step order by step'
```

## Columns

{columns}
"""


def publish(target: Folder, source: Path, chosen: Mapping[str, Any]) -> None:
    """Write the card of the dataset to which a run was sent, if it is one. `chosen`: the filters that selected it."""
    root = target.repo_root
    if root is None:
        return
    names, folder = root.sizes(), target.place.path.removeprefix(root.place.path).strip("/")
    here = {part.name for part in find_parts(source)}
    has_more = any(name.removeprefix(f"{folder}/") not in here for name in names if _is_in(folder, name))
    run = StoredRun(find_newest_run(target.place.url) if has_more and not chosen else source)
    root.write("README.md", card(run, datasets(names, _kept(root, names)), folder, root.repo, chosen))


def _kept(root: HubFolder, names: Collection[str]) -> set[str]:
    """Return the files of a dataset without parts that were joined into others: each rollout is in one file."""
    remaining = set(names)
    for note in [name for name in names if name.rpartition("/")[2] == NOTE]:
        start = note.removesuffix(NOTE)
        inside = {name.removeprefix(start) for name in names if name.startswith(start)}
        with TemporaryDirectory(prefix="rollouts-") as made:
            root.fetch(note, Path(made) / NOTE)
            remaining -= {start + name for name in inside - remove_contained_parts(Path(made), inside)}
    return remaining


def _is_in(folder: str, name: str) -> bool:
    """Return True if a file is part of the run in the folder, from another node or removed here since."""
    return name.startswith(f"{folder}/data/".lstrip("/")) and name.endswith(".parquet")


def datasets(names: Iterable[str], kept: Collection[str]) -> Datasets:
    """Return the splits and files of each run's folder among files of these names, with patterns where possible."""
    there: defaultdict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for match in filter(None, map(_DATA.fullmatch, sorted(names))):
        there[match[1], match[2], match[3], match[4]].append(match[0])
    files_by_run: Datasets = {}
    for (run, kind, split, suffix), files in sorted(there.items(), reverse=True):  # the train split comes before eval
        those = [name for name in files if name in kept]
        pattern = f"{run}{kind}/{split}/**/*.{suffix}"
        files_by_run.setdefault(run.rstrip("/"), {})[split] = pattern if those == files else those
    return files_by_run


def card(run: StoredRun, known: Datasets, folder: str, repo: str, chosen: Mapping[str, Any]) -> str:
    """Return the README.md of a dataset that has the run in `folder`, beside other runs."""
    columns = [[f"`{name}`", f"`{_kind(kind)}`", _MEANINGS.get(name, "")] for name, kind in FIELDS]
    others = [name for name in known if name != folder]
    return _TEXT.format(
        front=_front(known, folder),
        name=_plain(run.name),
        which=" chosen as below" if chosen else "",
        facts=_table(["", ""], _facts(run, chosen)),
        chosen=_chosen(chosen),
        others=f"Other runs here: {', '.join(map(_plain, others))}.\n\n" if others else "",
        repo=repo,
        config=_config(folder),
        split=next(iter(known.get(folder, ())), "train"),
        path=f"{repo}/{folder}".rstrip("/"),
        folder=folder.rpartition("/")[2] or repo.rpartition("/")[2],
        columns=_table(["column", "type", ""], columns),
    )


def _front(known: Datasets, newest: str) -> str:
    """Return the metadata for the Hub and `load_dataset`: a configuration for each run, by default the newest."""
    head = ["---", "pretty_name: Rollouts", "tags:", "- reinforcement-learning", "- rollouts", "- rollout-plugins"]
    configs = ["configs:"] if known else []
    for folder in sorted(known, key=lambda folder: folder != newest):
        configs.append(f"- config_name: {json.dumps(_config(folder))}")
        configs += ["  default: true"] * (folder == newest)
        configs.append("  data_files:")
        for split, files in known[folder].items():
            configs += [f"  - split: {json.dumps(split)}", f"    path: {json.dumps(files)}"]
    return "\n".join([*head, *configs, "---", ""])


def _config(folder: str) -> str:
    return re.sub(r"[^\w.-]", "-", folder) or "default"


def _facts(run: StoredRun, chosen: Mapping[str, Any]) -> list[list[str]]:
    info, is_live = run.info, not run.attempts or not run.attempts[-1]["ended"]
    table = run.table(["split", "marks"], **(chosen or {"superseded": True}))
    splits = {} if is_live else Counter(table["split"].to_pylist())
    pruned = pc.sum(are_pruned(table)).as_py() or 0
    facts = {
        "run": info.id,
        "trainer": info.trainer or info.host,
        "model": info.model,
        "rollouts": format_counts(splits),
        "steps": f"{len(run.steps):,}",
        "rewards": ", ".join(info.reward_names),
        "tools": ", ".join(str(tool.get("function", tool).get("name", "")) for tool in info.tools),
        "text removed since": f"of {count(pruned, 'rollout')}" if pruned else "",
        "lost while recording": format_counts(run.health.drops) or "nothing",
        "not trained on": format_counts(run.health.untrained),
        "made with": ", ".join(f"{name} {version}" for name, version in info.versions.items()),
    }
    return [[name, _plain(value)] for name, value in facts.items() if value]


def _chosen(chosen: Mapping[str, Any]) -> str:
    filters = json.dumps(dict(chosen), indent=1, default=str)
    return f"## Which rollouts\n\n```json\n{filters}\n```\n\n" if chosen else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def _plain(text: str) -> str:
    """Return the text on one line, without characters that Markdown interprets."""
    line = " ".join(text.split())
    return "".join(f"\\{letter}" if letter in r"|<>*`[]\_" else letter for letter in line)


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list of {_kind(kind.value_type)}"
    if pa.types.is_struct(kind):
        return "struct"
    return "text" if pa.types.is_large_string(kind) or pa.types.is_string(kind) else str(kind)
