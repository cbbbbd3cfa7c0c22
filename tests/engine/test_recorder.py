"""A loop that is no Trainer: what it hands over is kept, and it neither waits, nor breaks, nor ends because of that."""

import asyncio
import contextvars
import gc
import logging
import os
import random
import runpy
import shlex
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import trackio
from PIL import Image as Picture
from shape_rig import SQLiteStorage, keep, texts
from store_rig import Sink

from rollout_plugins import Rollout, RolloutRecorder, Tokens, ToolCall, hookimpl, open_run
from rollout_plugins.cli.main import main
from rollout_plugins.errors import SetupError
from rollout_plugins.plugins.metrics import Metrics
from rollout_plugins.sinks.trackio import TrackioSink
from rollout_plugins.store.finding import find_runs
from rollout_plugins.testing import hostile_rollouts

HERE = Path(__file__).parents[1] / "support"
EXAMPLES = sorted((HERE.parents[1] / "examples").glob("recorder_*.py"))


def row(answer="4", **more):
    return {"prompt": "2+2?", "completion": answer, **more}


def recorder_in(folder, *plugins, **options):
    return RolloutRecorder(plugins, dir=folder / "runs", **options)


class Slow:
    """Holds up the worker thread until told."""

    def __init__(self):
        self.go = threading.Event()
        self.gave_up = False

    @hookimpl
    def on_rollout(self, rollout):
        self.gave_up = not self.go.wait(20)


# --- what is kept --------------------------------------------------------------------------------------------------


def test_a_dict_becomes_a_rollout_with_what_it_says_and_nothing_invented(tmp_path):
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
    said = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
        {"role": "assistant", "content": "It is 4."},
    ]
    given = row(
        said, rewards={"right": np.float32(1.0), "style": None}, reward=torch.tensor(0.5), advantage=-1, finish="stop",
        columns={"answer": 4}, extra={"turns": 2}, prompt_tokens=3, completion_tokens=9, policy_step=7,
    )  # fmt: skip
    full, bare = keep(tmp_path, [given, row()]).rollouts(tokens=True)
    assert (texts(full.prompt), full.prompt_is_text) == ([("user", "2+2?")], True)
    assert list(full.completion) == said
    (made,) = full.tool_calls
    assert (made.name, made.arguments, made.result, made.status) == ("add", {"a": 2}, "4", "ok")
    assert (full.rewards, full.reward, full.advantage) == ({"right": 1.0, "style": None}, 0.5, -1.0)
    assert (full.finish, full.columns, full.extra, full.policy_step) == ("stop", {"answer": 4}, {"turns": 2}, 7)
    assert (full.prompt_tokens, full.completion_tokens) == (3, 9)
    assert (bare.rewards, bare.reward, bare.advantage, bare.prompt_tokens, bare.policy_step) == (
        {},
        None,
        None,
        None,
        None,
    )
    assert (bare.finish, bare.tokens, bare.columns) == ("unknown", None, {})


def test_a_rollout_record_comes_back_as_it_was(tmp_path):
    given = Rollout(
        id="mine", prompt=({"role": "user", "content": "a"},), completion=({"role": "assistant", "content": "b"},),
        tool_calls=(ToolCall(name="f", arguments={"x": [1]}, seconds=0.5),), rewards={"r": float("inf")}, reward=2.0,
        marks={"mine": "yes"}, tokens=Tokens(prompt=[1], completion=[2, 3], mask=[1, 0]),
    )  # fmt: skip
    (found,) = keep(tmp_path, [given], tokens=True).rollouts(tokens=True)
    for name in ("prompt", "completion", "tool_calls", "rewards", "reward", "tokens"):
        assert getattr(found, name) == getattr(given, name)
    assert (found.marks["mine"], found.id != "mine", found.step) == ("yes", True, 1)


def test_groups_are_equal_prompts_or_what_the_loop_says(tmp_path):
    pairs = [row(prompt) | {"prompt": prompt} for prompt in "aabbb"]
    named = [row(group=name) for name in ("x", "y", "x")]
    run = keep(tmp_path, pairs, named)
    assert [(r.group, r.group_size) for r in run.rollouts(step=1)] == [(0, 2)] * 2 + [(1, 3)] * 3
    assert [(r.group, r.group_size) for r in run.rollouts(step=2)] == [(0, 2), (1, 1), (0, 2)]
    with recorder_in(tmp_path) as recorder:
        recorder.record(1, [row(), row(), None, row()], group_size=2, policy_step=4, split="eval")
    found = list(open_run(tmp_path / "runs").rollouts())
    assert [(r.group, r.group_size, r.index) for r in found] == [(0, 2, 0), (0, 2, 1), (1, 1, 2)]
    assert {(r.split, r.policy_step) for r in found} == {("eval", 4)}


def test_totals_are_made_of_rewards_only_where_that_is_no_guess(tmp_path):
    both = {"right": 1.0, "brief": 0.5}
    run = keep(tmp_path, [row(rewards=both), row(rewards={"right": 1.0}), row(rewards=both, reward=9.0)])
    assert [r.reward for r in run.rollouts()] == [None, 1.0, 9.0]
    weighted = keep(tmp_path, [row(rewards=both)], reward_names=["brief", "right"], reward_weights=[2.0, 1.0])
    assert [r.reward for r in weighted.rollouts()] == [2.0]


def test_the_runs_facts_and_a_column_for_each_reward_of_the_first_batch(tmp_path):
    tool = {"type": "function", "function": {"name": "add"}}
    run = keep(
        tmp_path, [row(rewards={"right": 1.0})], model="tiny", trainer="mine", tools=[tool], settings={"lr": 0.1},
        chat_template="{{ x }}",
    )  # fmt: skip
    info = run.info
    assert (info.model, info.trainer, info.tools, info.settings) == ("tiny", "mine", (tool,), {"lr": 0.1})
    assert (info.reward_names, info.host, info.chat_template) == (("right",), "recorder", "{{ x }}")
    assert run.table(["reward/right"])["reward/right"].to_pylist() == [1.0]


def test_what_the_loop_changes_after_recording_does_not_show(tmp_path):
    slow = Slow()
    messages, columns, rewards = [{"role": "assistant", "content": "4"}], {"tags": ["a"]}, {"right": 1.0}
    call = ToolCall(name="f", arguments={"x": [1]})
    given = row(messages, columns=columns, rewards=rewards, tool_calls=[call])
    batch = [given, Rollout(id="", completion=tuple(messages), columns=columns)]
    with recorder_in(tmp_path, slow) as recorder:
        recorder.record(1, batch)
        messages[0]["content"] = "changed"
        columns["tags"].append("b")
        rewards.clear()
        call.arguments["x"].append(2)
        given.clear()
        batch.clear()
        slow.go.set()
    first, second = open_run(tmp_path / "runs").rollouts()
    assert texts(first.completion) == texts(second.completion) == [("assistant", "4")]
    assert (first.columns, first.rewards) == ({"tags": ["a"]}, {"right": 1.0})
    assert first.tool_calls[0].arguments == {"x": [1]}


def test_arrays_and_pictures_that_the_loop_uses_again_are_kept_as_they_were(tmp_path):
    """Rewards, ids and frames are often written into the same buffers, step after step."""
    slow, score, ids = Slow(), torch.tensor(1.0), np.array([3, 4])
    canvas, frame = Picture.new("RGB", (2, 2)), np.zeros((2, 2), np.uint8)
    given = row(
        [{"role": "user", "content": [{"type": "image", "image": canvas}, {"type": "image", "image": frame}]}],
        rewards={"right": score}, reward=score, tokens={"completion": ids, "mask": [1, 1]}, columns={"loss": score},
    )  # fmt: skip
    with recorder_in(tmp_path, slow, "images", tokens=True) as recorder:
        recorder.record(1, [given])
        score += 1
        ids += 1
        canvas.paste((255, 255, 255), (0, 0, 2, 2))
        frame += 255
        slow.go.set()
    run = open_run(tmp_path / "runs")
    (found,) = run.rollouts(tokens=True)
    assert (found.reward, found.rewards, found.columns) == (1.0, {"right": 1.0}, {"loss": 1.0})
    assert found.tokens.completion == [3, 4]
    for block in found.completion[0]["content"]:
        assert Picture.open(run.dir / block["image"].path).convert("L").getextrema() == (0, 0)


def test_tokens_are_kept_only_when_asked_for(tmp_path):
    given = [row(tokens={"completion": [1, 2], "mask": [1, 1]})]
    (without,) = keep(tmp_path, given).rollouts(tokens=True)
    (with_,) = keep(tmp_path, given, tokens=True).rollouts(tokens=True)
    assert (without.tokens, with_.tokens) == (None, Tokens(completion=[1, 2], mask=[1, 1]))


# --- plugins, sinks, metrics ---------------------------------------------------------------------------------------


@pytest.mark.needs(part="redact")
def test_plugins_work_as_in_a_training(tmp_path):
    class Words:
        @hookimpl
        def rollout_metrics(self, rollouts):
            return {"count": len(rollouts)}

    sink = Sink()
    content = [{"type": "image", "image": Picture.new("RGB", (4, 4))}, {"type": "text", "text": "sk-" + "a1B2" * 12}]
    given = [{"prompt": [{"role": "user", "content": content}], "completion": str(n)} for n in range(6)]
    with recorder_in(tmp_path, "redact", "cap", Words(), sink, config={"cap": {"max_per_step": 2}}) as recorder:
        recorder.record(1, given)
        assert recorder.flush()
        numbers = recorder.metrics()
    run = open_run(tmp_path / "runs")
    found = list(run.rollouts())
    assert all("[REDACTED:openai]" in str(r.prompt) for r in found)
    assert len(list((run.dir / "media").iterdir())) == 1
    assert len(sink.ids) == 2
    assert numbers["rollouts/count"] == 6
    assert recorder.metrics("eval") == {}


def test_a_dashboard_is_capped_and_joins_the_loops_own_run(tmp_path):
    def loop():
        trackio.init(project="theirs-own", name="theirs", auto_log_cpu=False, auto_log_gpu=False)
        with recorder_in(tmp_path, "trackio") as recorder:
            recorder.record(3, [row(str(n), reward=float(n)) for n in range(40)])
        trackio.log({"loss": 1.0}, step=3)
        trackio.finish()

    contextvars.copy_context().run(loop)
    traces = SQLiteStorage.get_traces("theirs-own", "theirs")
    assert (len(traces), {trace["step"] for trace in traces}) == (16, {3})
    assert SQLiteStorage.get_logs("theirs-own", "theirs")[-1]["loss"] == 1.0


def test_an_own_loop_reaches_trackio_in_a_run_of_its_own(tmp_path):
    keep(tmp_path, [row(rewards={"right": 1.0})], plugins=[TrackioSink(project="own-loop", name="mine")])
    (trace,) = SQLiteStorage.get_traces("own-loop", "mine")
    assert texts(trace["messages"]) == [("user", "[reward 1]\n2+2?"), ("assistant", "4")]
    assert trace["metadata"]["reward/right"] == 1.0


# --- mistakes ------------------------------------------------------------------------------------------------------

MISTAKES = {
    "did you mean 'completion'": [{"prompt": "a", "completoin": "b"}],
    "give a list": row(),
    "of type str; give a Rollout": ["text"],
    "rollouts is of type int": 7,
    "neither prompt nor completion": [{"reward": 1.0}],
    "rewards of type list": [row(rewards=[1.0])],
    "rewards\\['right'\\] of type str": [row(rewards={"right": "yes"})],
    "finish 'done'; accepted: stop": [row(finish="done")],
    "'step', which the recorder decides": [row(step=3)],
    "columns of type str": [row(columns="x")],
    "and 1 more": [row(finish="done")] * 6,
}


@pytest.mark.parametrize("words", MISTAKES)
def test_the_first_batch_shows_mistakes_with_their_fix_and_later_ones_never_raise(tmp_path, words, caplog):
    with recorder_in(tmp_path) as recorder:
        with pytest.raises(SetupError, match=words):
            recorder.record(1, MISTAKES[words])
        recorder.record(1, [row()])
        recorder.record(2, MISTAKES[words])
        recorder.record(3, [row("5")])
    run = open_run(tmp_path / "runs")
    assert (run.count(step=1), run.count(step=3)) == (1, 1)
    kept = list(run.rollouts(step=2))
    assert sum(run.drops.values()) + sum(bool(r.marks) for r in kept) >= 1 or words in {
        "finish 'done'; accepted: stop", "neither prompt nor completion", "and 1 more",
    }  # fmt: skip


def test_a_key_that_is_no_field_is_kept_and_marked_later(tmp_path):
    with recorder_in(tmp_path) as recorder:
        recorder.record(1, [row()])
        recorder.record(2, [row(judge=0.5)])
    (late,) = open_run(tmp_path / "runs").rollouts(step=2)
    assert (late.extra, late.marks) == ({"judge": 0.5}, {"stray:judge": "not a field of a rollout; it is in extra"})


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"step": "one"}, "step is 'one'; give the number"),
        ({"split": "valid"}, "split is 'valid'; give 'train' or 'eval'"),
        ({"group_size": 0}, "group_size is 0"),
        ({"policy_step": 1.5}, "policy_step is 1.5"),
    ],
)
def test_where_a_batch_belongs_is_checked_at_first_and_marked_later(tmp_path, said, words):
    with recorder_in(tmp_path) as recorder:
        with pytest.raises(SetupError, match=words):
            recorder.record(**{"step": 5, "rollouts": [row()], **said})
        recorder.record(np.int64(5), [row()])
        recorder.record(**{"step": 5, "rollouts": [row()], **said})
    _, late = open_run(tmp_path / "runs").rollouts()
    (name,) = said
    assert (late.step, late.split, late.marks[f"lost:{name}"]) == (5, "train", late.marks[f"lost:{name}"])
    assert words.partition(";")[0] in late.marks[f"lost:{name}"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"plugins": ["nonsense"]}, "no plugin named 'nonsense'"),
        ({"plugins": "trackio"}, "plugins takes a list"),
        ({"on_full": "wait"}, "on_full is 'wait'"),
        ({"dir": __file__}, "is a file; give a folder"),
        ({"dir": "s3://bucket/runs"}, "dir='s3://bucket/runs' is a URL; runs are written to a folder of this machine"),
        ({"dir": Path("hf://datasets/runs")}, "is a URL"),
        ({"dir": "simplecache::gs://bucket"}, "is a URL"),
        ({"dir": ""}, "dir is empty; give a folder"),
        ({"mirror": ""}, "mirror is empty; give a URL"),
        ({"rank": 1}, "rank is 1 and world_size None; give both"),
        ({"rank": 2, "world_size": 2}, "a rank from 0 to world_size - 1"),
        ({"rank": "1", "world_size": 2}, "rank is '1' and world_size 2; give both, as whole numbers"),
        ({"run_id": "a/b"}, "run_id is 'a/b'; give a name that a folder can have"),
        ({"resumed_from": 3}, "give its run_id too"),
        ({"reward_names": "right"}, "give a list of names"),
        ({"reward_names": ["a"], "reward_weights": [1.0, 2.0]}, "a weight each"),
    ],
)
def test_mistakes_of_setup_are_one_sentence(tmp_path, options, words):
    with pytest.raises(SetupError, match=words):
        RolloutRecorder(**{"dir": tmp_path / "runs", **options})


def test_a_folder_may_be_named_from_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with RolloutRecorder(dir="~/mine", mirror="~/copies") as recorder:
        recorder.record(1, [row()])
    run = open_run("~/mine")
    assert run.dir.parent == tmp_path / "mine"
    assert len(open_run("~/copies")) == len(run) == 1
    with RolloutRecorder(dir="~nobody-of-this-name") as recorder:
        recorder.record(1, [row()])
    assert len(open_run("~nobody-of-this-name")) == 1
    assert not (tmp_path / "~").exists()


def test_with_strict_everything_is_raised(tmp_path):
    class Fails:
        @hookimpl
        def on_rollout(self, rollout):
            raise ZeroDivisionError("mine")

    with recorder_in(tmp_path, strict=True) as recorder:
        recorder.record(1, [row()])
        with pytest.raises(SetupError, match="did you mean"):
            recorder.record(2, [{"prompt": "a", "completoin": "b"}])
    broken = recorder_in(tmp_path, Fails(), strict=True)
    broken.record(1, [row()])
    with pytest.raises(ZeroDivisionError):
        broken.flush()
    broken.close()


class Sulky(dict):
    """A mapping that does not map."""

    def __getitem__(self, key):
        raise RuntimeError("no")

    def __iter__(self):
        raise RuntimeError("no")


def test_hostile_rollouts_cost_only_themselves(tmp_path):
    loop = {"prompt": "a"}
    loop["completion"] = [loop]
    odd = [
        Sulky(),
        loop,
        row(columns={"x": object(), 3: {1, 2}}),
        row(rewards={"r": "NaN", 3: 10**400}),
        row(extra=[1]),
    ]
    with recorder_in(tmp_path) as recorder:
        recorder.record(1, [row()])
        recorder.record(2, hostile_rollouts())
        recorder.record(3, odd)
        recorder.record(4, [row()])
        recorder.record("five", [row(marks=[1])])
    run = open_run(tmp_path / "runs")
    assert run.count(step=2) == len(hostile_rollouts())
    assert run.count(step=3) == len(odd) - 1
    assert run.count(step=4) == 2
    assert run.drops["unreadable"] == 1


def test_groups_that_do_not_come_out_even_are_a_mistake(tmp_path):
    with recorder_in(tmp_path) as recorder:
        with pytest.raises(SetupError, match="3 rollouts do not divide into groups of 2; leave group_size out"):
            recorder.record(1, [row()] * 3, group_size=2)
        recorder.record(1, [row()] * 2, group_size=2)
        recorder.record(2, [row()] * 3, group_size=2)
    assert [r.group_size for r in open_run(tmp_path / "runs").rollouts(step=2)] == [2, 2, 1]


def test_an_id_says_the_step_that_its_rollout_trained_and_is_nobody_elses(tmp_path):
    with recorder_in(tmp_path, run_id="exp") as recorder:
        recorder.record(20, [row(), row()])
        recorder.record(20, [row()], split="eval")
        recorder.record(20, [row()])
        recorder.record(21, [row()])
    found = [rollout.id for rollout in open_run(tmp_path / "runs").rollouts()]
    assert found == ["exp.1.t20.0.0", "exp.1.t20.0.1", "exp.1.e20.0.0", "exp.1.t20-2.0.0", "exp.1.t21.0.0"]


# --- beginning and ending ------------------------------------------------------------------------------------------


def test_the_same_name_goes_on_as_the_next_attempt(tmp_path):
    for attempt, steps in ((1, (1, 2, 3)), (2, (4, 5))):
        with recorder_in(tmp_path, run_id="exp") as recorder:
            assert (recorder.run.id, recorder.run.attempt) == ("exp", attempt)
            for step in steps:
                recorder.record(step, [row(str(attempt))])
    run = open_run(tmp_path / "runs" / "exp")
    assert run.steps == [1, 2, 3, 4, 5]
    with recorder_in(tmp_path, run_id="exp", resumed_from=3) as recorder:
        recorder.record(4, [row("3")])
    run.refresh()
    assert [(r.step, r.completion[0]["content"]) for r in run.rollouts()] == [(1, "1"), (2, "1"), (3, "1"), (4, "3")]
    assert len({r.id for r in run.rollouts(superseded=True)}) == 6
    assert len(find_runs(tmp_path / "runs")) == 1


def test_closing_twice_is_fine_and_what_comes_later_is_not_kept_and_said_once(tmp_path, caplog):
    recorder = recorder_in(tmp_path)
    recorder.record(1, [row()])
    recorder.close()
    recorder.close()
    with caplog.at_level(logging.WARNING, "rollout_plugins"):
        recorder.record(2, [row()])
        recorder.record(3, [row()])
    assert caplog.text.count("no longer records; open another one with the same run_id") == 1
    assert recorder.flush()
    assert open_run(tmp_path / "runs").steps == [1]


def test_a_recorder_that_records_nothing_leaves_nothing(tmp_path):
    with recorder_in(tmp_path) as recorder:
        assert recorder.metrics() == {}
    assert not (tmp_path / "runs").exists()


def work(scenario, folder, **environment):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), **environment}
    return subprocess.Popen(
        [sys.executable, str(HERE / "recorder_worker.py"), scenario, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )


@pytest.mark.parametrize(
    ("scenario", "code"), [("without_close", 0), ("exception", 1), ("interrupt", -signal.SIGINT), ("light", 0)]
)
def test_however_the_loop_ends_everything_is_there_and_the_run_has_ended(tmp_path, scenario, code):
    child = work(scenario, tmp_path)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == code, errors
    run = open_run(tmp_path)
    assert run.steps == [1, 2, 3, 4, 5]
    assert len(run) == 20
    assert run.attempts[0]["ended"]


def test_nothing_that_training_needs_is_loaded():
    program = "from rollout_plugins import RolloutRecorder as R\nR().close()\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded & {"torch", "transformers", "trl", "accelerate", "datasets", "wandb", "trackio"} == set()


def test_killed_at_any_moment_it_has_kept_what_was_handed_over(tmp_path):
    dice = random.Random(4)
    children = [work("killed", tmp_path / str(number)) for number in range(2)]
    for number, child in enumerate(children):
        first = child.stdout.readline()
        time.sleep(dice.uniform(0, 0.4))
        child.kill()
        rest, errors = child.communicate()
        safe = [int(line) for line in (first + rest).splitlines(keepends=True) if line.endswith("\n")]
        assert safe, errors
        run = open_run(tmp_path / str(number))
        kept = Counter(run.table(["step"])["step"].to_pylist())
        assert set(safe) <= set(kept)
        assert set(kept.values()) == {4}
        assert run.damaged == {}


def test_a_forked_copy_records_nothing_and_harms_nothing(tmp_path):
    child = work("forked", tmp_path)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 0
    assert "opened by another process" in errors
    run = open_run(tmp_path)
    assert (run.steps, len(run)) == ([1, 2], 8)


def said_by(scenario, folder):
    child = work(scenario, folder)
    try:
        out, errors = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 0, errors
    return out


def test_a_loop_that_forks_right_after_its_first_batch_goes_on_and_so_do_recorders_of_its_children(tmp_path):
    seven, theirs = said_by("pool", tmp_path).split()
    assert seven == "7"
    assert len(open_run(theirs)) == 4
    assert open_run(tmp_path / "parent").steps == [1, 2]


def test_a_fork_lets_a_plugin_finish_what_it_is_importing(tmp_path):
    assert said_by("importing", tmp_path) == "7\n"
    assert len(open_run(tmp_path)) == 4


def test_a_forked_copy_may_use_all_it_has_inherited_whatever_was_locked(tmp_path):
    assert said_by("locked", tmp_path) == "4 4\n"
    assert len(open_run(tmp_path)) == 4


@pytest.mark.parametrize(("options", "each"), [({"autoload": False}, 1), ({}, 2)])
def test_an_open_run_takes_few_threads(tmp_path, options, each):
    before = threading.active_count()
    recorders = [RolloutRecorder(dir=tmp_path, **options) for _ in range(10)]
    for recorder in recorders:
        recorder.record(1, [{"prompt": "a", "completion": "b"}])
        assert recorder.flush()
    assert threading.active_count() - before <= 10 * each
    for recorder in recorders:
        recorder.close()
    assert len(find_runs(tmp_path)) == 10


# --- several processes, threads, tasks -----------------------------------------------------------------------------


def assert_one_run_of_two_ranks(folder):
    run = open_run(folder)
    assert len(find_runs(folder)) == 1
    found = list(run.rollouts(step=1))
    assert len({r.id for r in run.rollouts()}) == len(run) == 16
    assert sorted(r.index for r in found) == list(range(8))
    groups = {r.group: [x.rank for x in found if x.group == r.group] for r in found}
    assert sorted(map(tuple, groups.values())) == [(0, 0), (0, 0), (1, 1), (1, 1)]
    return run


@pytest.mark.slow
def test_processes_of_torchrun_share_a_run_without_a_process_group(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*command, str(HERE / "recorder_worker.py"), "ranks", str(tmp_path)], env=env, check=True, timeout=120
    )
    assert_one_run_of_two_ranks(tmp_path)


@pytest.mark.slow
def test_processes_of_anything_else_share_a_run_by_its_name_also_when_they_go_on(tmp_path):
    for _ in range(2):
        children = [work("ranks", tmp_path, RANK=str(n), WORLD_SIZE="2", RUN_NAME="exp") for n in range(2)]
        said = sorted(child.communicate(timeout=60)[0].split() for child in children)
        assert said == [["exp", "0", "2"], ["exp", "1", "2"]]
    run = open_run(tmp_path)
    assert {(r.attempt, r.rank) for r in run.rollouts()} == {(1, 0), (1, 1), (2, 0), (2, 1)}
    assert len({r.id for r in run.rollouts()}) == len(run) == 32


def open_and_record_together(folder, *environments):
    children = [work("shared", folder, **environment) for environment in environments]
    assert [child.stdout.readline() for child in children] == ["open\n"] * len(children)
    for child in children:
        child.communicate("\n", timeout=60)
    assert [child.returncode for child in children] == [0] * len(children)


def test_processes_that_nobody_numbered_never_share_an_id(tmp_path):
    open_and_record_together(tmp_path, {}, {})
    run = open_run(tmp_path)
    assert len({r.id for r in run.rollouts()}) == len(run) == 16
    assert {r.attempt for r in run.rollouts()} == {1, 2}
    assert [(a["attempt"], a["rollouts"], a["ended"] is None) for a in run.attempts] == [
        (n, {"train": 8}, False) for n in (1, 2)
    ]


def test_writers_that_go_on_together_do_not_hide_each_others_rollouts(tmp_path):
    with recorder_in(tmp_path, run_id="exp") as recorder:
        recorder.record(1, [row("before")])
        recorder.record(2, [row("done again")])
    both = [recorder_in(tmp_path, run_id="exp", resumed_from=1) for _ in range(2)]
    for number, recorder in enumerate(both):
        recorder.record(2, [row(f"from {number}")])
    for recorder in both:
        recorder.close()
    run = open_run(tmp_path / "runs")
    assert [r.completion[0]["content"] for r in run.rollouts()] == ["before", "from 0", "from 1"]
    assert len({r.id for r in run.rollouts(superseded=True)}) == 4


def test_processes_may_be_numbered_by_whoever_starts_them(tmp_path):
    open_and_record_together(tmp_path, {"GIVEN": "0"}, {"GIVEN": "1"})
    assert {(r.attempt, r.rank) for r in assert_one_run_of_two_ranks(tmp_path).rollouts()} == {(1, 0), (1, 1)}


def test_processes_that_cannot_agree_say_how_they_could(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with caplog.at_level(logging.WARNING, "rollout_plugins"):
        recorder_in(tmp_path).close()
    assert "give all of them the same run_id" in caplog.text
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(SetupError, match="RANK is 'first' in the environment"):
        recorder_in(tmp_path)


@pytest.mark.parametrize("sync", [False, True])
def test_threads_may_record_at_the_same_time(tmp_path, sync):
    with recorder_in(tmp_path, sync=sync) as recorder:

        def loop(number):
            for step in range(20):
                recorder.record(step, [row(f"{number}.{step}.{n}") for n in range(3)])

        threads = [threading.Thread(target=loop, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = list(open_run(tmp_path / "runs").rollouts())
    assert len({r.id for r in found}) == len(found) == 6 * 20 * 3
    assert len({r.completion[0]["content"] for r in found}) == len(found)
    for r in found:
        assert r.completion[0]["content"].split(".")[1:] == [str(r.step), str(r.index)]


def test_asyncio_records_from_many_tasks_and_closes(tmp_path):
    async def loop():
        async with recorder_in(tmp_path) as recorder:

            async def sample(number):
                await asyncio.sleep(0.01 * (number % 3))
                await recorder.arecord(number, [row(str(number))], policy_step=number)

            await asyncio.gather(*(sample(number) for number in range(30)))
            assert await recorder.aflush()

    asyncio.run(loop())
    assert len(open_run(tmp_path / "runs")) == 30


def test_a_full_queue_drops_the_newest_batch_whole_and_never_waits(tmp_path):
    slow = Slow()
    with recorder_in(tmp_path, slow) as recorder:
        recorder._pipeline._worker._limit = 10_000
        for step in range(1, 11):
            recorder.record(step, [row("x" * 3000)])
        assert not slow.gave_up
        slow.go.set()
    run = open_run(tmp_path / "runs")
    assert 1 <= len(run) < 10
    assert run.drops == {"queue_full": 10 - len(run)}


def test_with_block_the_event_loop_goes_on_while_the_queue_is_full(tmp_path):
    slow = Slow()
    ticks = []

    async def loop():
        async with recorder_in(tmp_path, slow, on_full="block") as recorder:
            recorder._pipeline._worker._limit = 10_000
            tasks = [asyncio.create_task(recorder.arecord(step, [row("x" * 6000)])) for step in range(1, 5)]
            for _ in range(20):
                ticks.append(sum(task.done() for task in tasks))
                await asyncio.sleep(0.01)
            slow.go.set()
            await asyncio.gather(*tasks)

    asyncio.run(loop())
    assert len(ticks) == 20
    assert ticks[-1] < 4
    run = open_run(tmp_path / "runs")
    assert (len(run), run.drops) == (4, {})


def test_recording_costs_the_loop_no_more_than_a_copy(tmp_path):
    slow = Slow()
    batch = [row([{"role": "assistant", "content": "x" * 2000}] * 8) for _ in range(256)]
    with recorder_in(tmp_path, slow) as recorder:
        recorder.record(1, batch)
        took = []
        for step in range(2, 7):
            started = time.thread_time()
            recorder.record(step, batch)
            took.append(time.thread_time() - started)
        slow.go.set()
    assert min(took) < 0.05


# --- examples ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.needs(part="shapes")
def test_the_examples_run_and_what_they_say_to_type_next_works(tmp_path, monkeypatch, capsys, path):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    commands = [line for line in capsys.readouterr().out.splitlines() if line.startswith("rollouts ")]
    assert len(commands) == 2
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0
    assert "assistant" in capsys.readouterr().out
    assert len(path.read_text().splitlines()) <= 80


def test_there_is_an_example_for_each_framework():
    assert [path.stem.removeprefix("recorder_") for path in EXAMPLES] == [
        "areal", "own_loop", "tinker", "torchforge", "verl",
    ]  # fmt: skip


@pytest.mark.parametrize("given", [{}, {"dir": "mine"}])
def test_a_loop_that_changes_the_working_directory_loses_nothing(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "away").mkdir()
    with RolloutRecorder(**given) as rec:
        monkeypatch.chdir("away")
        for step in (1, 2):
            rec.record(step, [row()])
    assert len(open_run(tmp_path / given.get("dir", "runs"))) == 2
    assert not [*(tmp_path / "away").iterdir()]


def test_metrics_that_nobody_asks_for_do_not_pile_up_and_are_averaged(tmp_path):
    class Many:
        @hookimpl
        def rollout_metrics(self, rollouts, step):
            return {f"figure {i}": step.generation + 0.5 for i in range(1000)}

    with recorder_in(tmp_path, Many(), sync=True, autoload=False) as rec:
        rec.record(1, [row()])
        tracemalloc.start()
        for _ in range(40):
            rec.record(1, [row()])
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held < 500_000
        assert rec.metrics()["rollouts/figure 999"] == 20.5
        assert "rollouts/figure 999" not in rec.metrics()


# --- what waits ----------------------------------------------------------------------------------------------------


def words(count):
    return "".join(random.choices("abcdefgh ", k=count))


def whole_numbers(count):
    return [random.randrange(100_000) for _ in range(count)]


def numbers(count):
    return [random.random() for _ in range(count)]


def siblings(count):
    prompt = words(count)
    return [{"prompt": prompt, "completion": words(300), "reward": random.random()} for _ in range(8)]


def with_tokens(count):
    tokens = {"prompt": whole_numbers(count), "completion": whole_numbers(count), "logprobs": numbers(count)}
    return {"prompt": words(20), "completion": words(40), "tokens": {**tokens, "mask": [1] * count}}


def record_of(count):
    said = {"prompt": ({"role": "user", "content": words(count)},), "completion": (words(count),)}
    return Rollout(id="", **said, tokens=Tokens(prompt=None, completion=whole_numbers(count), mask=[0] * count))


WAITING = {
    "text": lambda: [{"prompt": words(200), "completion": words(400), "reward": 1.0} for _ in range(8)],
    "long text": lambda: [{"prompt": words(5000), "completion": "语" * 5000, "reward": 1.0} for _ in range(8)],
    "siblings that share a prompt": lambda: siblings(20_000),
    "tokens": lambda: [with_tokens(1000) for _ in range(8)],
    "records": lambda: [record_of(500) for _ in range(8)],
    "columns": lambda: [
        {"prompt": words(99), "columns": {"a": numbers(50), "b": [whole_numbers(9) for _ in range(20)]}}
        for _ in range(8)
    ],
    "bytes": lambda: [{"prompt": words(99), "columns": {"picture": random.randbytes(20_000)}} for _ in range(8)],
}


@pytest.mark.parametrize("shape", sorted(WAITING))
def test_the_queue_counts_what_it_holds(tmp_path, shape):
    entered, done = threading.Event(), threading.Event()

    class Waits:
        @hookimpl
        def on_rollout(self):
            entered.set()
            done.wait(60)

    with RolloutRecorder([Waits(), Metrics("all")], dir=tmp_path, tokens=True) as recorder:
        recorder.record(0, WAITING[shape]())
        assert entered.wait(30)
        counted = recorder.metrics()["rollouts/queue_bytes"]
        tracemalloc.start()
        for step in range(1, 41):
            recorder.record(step, WAITING[shape]())
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        counted = recorder.metrics()["rollouts/queue_bytes"] - counted
        done.set()
    assert held / 1.3 < counted < held * 1.3
