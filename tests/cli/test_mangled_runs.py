"""A run file with anything in it breaks no command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollout_plugins import open_run
from rollout_plugins.view.pages.about import _blocks

MANGLED = [
    None, True, -1, 10**30, 1e308, float("nan"), "x\ud800\x1b[2J", [[1], None, {"a": 1}],
    {"name": {"a": [1]}, "a\ud800": 10**40}, {"$dict": [[[1], 2], [None, 3]]},
]  # fmt: skip


def mangled(folder: Path, value: Any) -> list[dict[str, Any]]:
    """The facts of a run with the value in place of theirs: of the run, of its attempts, or of what those counted."""
    facts = json.loads((folder / "run.json").read_text())
    (attempt,) = facts["attempts"]
    counts = dict.fromkeys(("rollouts", "generations", "drops", "plugin_errors", "seconds"))
    return [
        {**dict.fromkeys(facts, value), "schema": facts["schema"], "attempts": facts["attempts"]},
        {
            **facts,
            "reward_names": [value, "correct"],
            "tools": [value],
            "reward_weights": [value],
            "settings": {"a": value},
        },
        {**facts, "attempts": value, "schema": value},
        {**facts, "attempts": [value, dict.fromkeys([*attempt, *counts], value)]},
        {**facts, "attempts": [{**attempt, **{name: {"why": value} for name in counts}}]},
    ]


@pytest.mark.slow  # 250 commands, half of which write a report
@pytest.mark.parametrize("value", MANGLED, ids=repr)
def test_a_mangled_run_file_breaks_no_command(run, rollouts, value, tmp_path):
    for facts in mangled(run.dir, value):
        (run.dir / "run.json").write_text(json.dumps(facts))
        for command in (
            ["list", tmp_path], ["list", tmp_path, "--json"], ["stats", run.dir, "--json"],
            ["doctor", run.dir, "--offline", "--json"], ["report", run.dir, "-o", tmp_path / "page.html", "--force"],
        ):  # fmt: skip
            code, out, err = rollouts(*command)
            assert (code, "Traceback" in err) == (0, False), (command, facts, err)
            assert "\x1b[2J" not in out
        stored = open_run(run.dir)
        assert len(stored) == 12
        assert stored.info.id
        assert list(_blocks(stored))
        assert stored._repr_html_()


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"settings": ' + '{"a":' * 900 + "1" + "}" * 900 + "}", "9" * 5000, "\0"]
)
def test_a_run_file_that_no_reader_takes_is_named(run, rollouts, text):
    (run.dir / "run.json").write_text(text)
    assert len(open_run(run.dir)) == 12
    code, _, err = rollouts("stats", run.dir)
    assert (code, "run.json cannot be read" in err) == (3, True)
