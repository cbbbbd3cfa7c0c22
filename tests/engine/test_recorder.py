"""`RolloutRecorder`: a loop of one's own gets what a TRL trainer gets, and it may do anything it likes."""

import contextvars
import runpy
import shlex
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
import trackio
from loops import Slow, recorder_in, row
from PIL import Image as Picture
from processes import HERE
from shape_rig import SQLiteStorage, keep, texts
from store_rig import Sink

from rollout_plugins import Rollout, RolloutRecorder, Tokens, ToolCall, hookimpl, open_run
from rollout_plugins.cli.main import main
from rollout_plugins.errors import SetupError
from rollout_plugins.sinks.trackio import TrackioSink
from rollout_plugins.testing import hostile_rollouts

EXAMPLES = sorted((HERE.parents[1] / "examples").glob("recorder_*.py"))


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


def test_totals_are_made_of_rewards_only_where_that_is_not_a_guess(tmp_path):
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


MISTAKES = {
    "did you mean 'completion'": [{"prompt": "a", "completoin": "b"}],
    "give a list": row(),
    "of type str; give a Rollout": ["text"],
    "rollouts is of type int": 7,
    "neither prompt nor completion": [{"reward": 1.0}],
    "rewards of type list": [row(rewards=[1.0])],
    "rewards\\['right'\\] of type str": [row(rewards={"right": "yes"})],
    "finish 'done'; accepted: stop": [row(finish="done")],
    "'step', which the recorder sets": [row(step=3)],
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
    assert sum(run.health.drops.values()) + sum(bool(r.marks) for r in kept) >= 1 or words in {
        "finish 'done'; accepted: stop", "neither prompt nor completion", "and 1 more",
    }  # fmt: skip


def test_a_key_that_is_not_a_field_is_kept_and_marked_later(tmp_path):
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
        pytest.param({"mirror": ""}, "mirror is empty; give a URL", marks=pytest.mark.needs(part="remote")),
        ({"rank": 1}, "rank is 1 and world_size None; give both"),
        ({"rank": 2, "world_size": 2}, "a rank from 0 to world_size - 1"),
        ({"rank": "1", "world_size": 2}, "rank is '1' and world_size 2; give both as integers"),
        ({"run_id": "a/b"}, "run_id is 'a/b'; give a valid folder name"),
        ({"resumed_from": 3}, "resumed_from needs run_id"),
        ({"reward_names": "right"}, "give a list of names"),
        ({"reward_names": ["a"], "reward_weights": [1.0, 2.0]}, "one weight for each"),
    ],
)
def test_mistakes_of_setup_are_one_sentence(tmp_path, options, words):
    with pytest.raises(SetupError, match=words):
        RolloutRecorder(**{"dir": tmp_path / "runs", **options})


@pytest.mark.needs(part="remote")
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
    assert run.health.drops["unreadable"] == 1


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


def test_a_loop_that_begins_at_step_0_is_the_first_attempt(tmp_path):
    with RolloutRecorder(dir=tmp_path, run_id="mine", resumed_from=0) as recorder:
        recorder.record(1, [row()])
    run = open_run(tmp_path / "mine")
    assert (run.attempts[0]["attempt"], run.health.absent, len(run)) == (1, [], 1)
