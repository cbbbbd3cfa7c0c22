"""verl's rollouts, given as the arguments of its own `_dump_generations`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rollout_plugins.errors import SetupError
from rollout_plugins.shapes.shaped import Asked, Shaped, Taken, bytes_of, each
from rollout_plugins.snapshot import Snapshot
from rollout_plugins.store.importers import Found
from rollout_plugins.store.importers.verl import found


def rollouts(
    inputs: Any,
    outputs: Any,
    gts: Any = None,
    scores: Any = None,
    reward_extra_infos_dict: Mapping[str, Any] | None = None,
    *,
    uids: Any = None,
) -> Shaped:
    """One rollout for each input and output; each argument is a list, an array or a tensor.

    Args:
        inputs: the prompts, as text or messages.
        outputs: the answers, as text or messages.
        gts: ground truths.
        scores: what the reward function gave.
        reward_extra_infos_dict: what else it gave, by name.
        uids: `batch.non_tensor_batch["uid"]`, equal for answers to one prompt; without it equal inputs are a group.
    """
    given = {"input": inputs, "output": outputs, "gts": gts, "score": scores, "uid": uids}
    return Shaped(lambda asked: _take(given, reward_extra_infos_dict or {}, asked))


def _take(given: Mapping[str, Any], infos: Mapping[str, Any], asked: Asked) -> Taken:
    copier = Snapshot()
    columns = {name: copier.copy(_list(values)) for name, values in {**infos, **given}.items() if values is not None}
    count = len(columns["output"])
    odd = [f"{len(columns[name])} of {name}" for name in given if len(columns.get(name, columns["output"])) != count]
    if odd and asked.checked:
        raise SetupError(f"there are {count} outputs, but {', '.join(odd)}; give one for each")
    whole = {name: values for name, values in columns.items() if len(values) == count}
    rest = {name: values for name, values in columns.items() if len(values) != count}
    rows = [{name: values[place] for name, values in whole.items()} for place in range(count)]
    found_in = _Reader(rest)
    return Taken(lambda: each(found_in, rows), count, bytes_of(count, copier.bytes), ("score",))


def _list(values: Any) -> list[Any]:
    return list(values.tolist() if hasattr(values, "tolist") else values)


class _Reader:
    """Makes rollouts of rows; the first one keeps whole what there is another number of than of rollouts."""

    def __init__(self, rest: dict[str, list[Any]]) -> None:
        self._rest = rest

    def __call__(self, row: dict[str, Any]) -> Found:
        made = found(row, 0)
        if "uid" in row:
            made.group = row["uid"]
        rest, self._rest = self._rest, {}
        if rest:
            notes = {f"extra:{name}": f"all {len(values)} values; kept here whole" for name, values in rest.items()}
            rollout = made.rollout
            made.rollout = replace(rollout, extra={**rollout.extra, **rest}, marks={**rollout.marks, **notes})
        return made
