"""The reader, SQL, commands and imports on runs that real trainings left, or are still writing."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from processes import run_worker
from rig import RLOO, call, dataset, make, tiny_model, tokenizer
from tools import multiply
from transformers import TrainerCallback

from rollout_plugins import RolloutPluginCallback, open_run
from rollout_plugins.cli import chat_templates
from rollout_plugins.cli.main import main

HERE = Path(__file__).parents[1] / "support"
SCRIPT = [
    call("multiply", {"a": 2, "b": 3}),
    "I do not know.",
    call("divide", {"a": 1}),
    call("multiply", {"a": 4}),
]
SCRIPT += ["It is 6.", "done", "done"]


def correct(completions, log_extra=None, **_):
    if log_extra:
        log_extra("note", [f"note {n}" for n in range(len(completions))])
    return [float("6" in str(completion[-1].get("content"))) for completion in completions]


def style(completions, **_):
    return [None if n % 2 else 0.25 for n in range(len(completions))]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A GRPO run with tools, beside TRL's own completions log of the same training."""
    folder = tmp_path_factory.mktemp("grpo")
    trainer = make(
        folder,
        SCRIPT,
        tools=[multiply],
        rewards=[correct, style],
        max_steps=3,
        eval_rows=dataset(2),
        eval_strategy="steps",
        eval_steps=3,
        log_completions=True,
    )
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    return trainer, folder / "out"


def test_a_run_that_was_mailed_has_the_name_it_had(trained, tmp_path):
    run = open_run(trained[1])
    mailed = shutil.copytree(run.dir, tmp_path / "mail" / "yesterday")
    assert open_run(mailed).name == run.name == f"{Path(run.info.model).name} · out"


def test_a_grpo_run_with_tools_answers_as_the_trainer_would(trained):
    trainer, out = trained
    run = open_run(out)
    truth = trainer.truth
    assert Counter(r.split for r in run.rollouts()) == Counter(row["split"] for row in truth)
    train = [row for row in truth if row["split"] == "train"]
    assert [list(r.completion) for r in run.rollouts(split="train")] == [row["completion"] for row in train]
    best = run.rollouts(split="train", order="-reward/correct")[0]
    assert best.rewards["correct"] == max(row["rewards"][0] for row in train)
    told = [m for row in train for m in row["completion"] if m["role"] == "tool"]
    answered = run.sql("select count(*) as n from tool_calls where split = 'train' and status <> 'not_run'")
    assert answered.to_pylist() == [{"n": len(told)}]
    assert {c.name for r in run.rollouts(tool="divide") for c in r.tool_calls} >= {"divide"}
    assert all(r.tool_calls for r in run.rollouts(has_error=True))


def test_the_stats_of_a_grpo_run_are_the_trainers(trained):
    trainer, out = trained
    rows = {(row["split"], row["step"]): row for row in open_run(out).stats()}
    logged = {entry["step"]: entry for entry in trainer.state.log_history if "rewards/correct/mean" in entry}
    assert len(logged) == 3
    for step, entry in logged.items():
        row = rows[("train", step)]
        assert row["reward"] == pytest.approx(entry["reward"], abs=1e-5)
        assert row["reward/correct"] == pytest.approx(entry["rewards/correct/mean"], abs=1e-5)
        assert row["completion_tokens"] == pytest.approx(entry["completions/mean_length"], abs=1e-3)


def test_groups_and_histories_of_a_grpo_run(trained):
    _, out = trained
    run = open_run(out)
    for rollout in run.rollouts(split="train"):
        siblings = run.siblings(rollout.id)
        assert len(siblings) == rollout.group_size == 2
        assert len({json.dumps(r.prompt) for r in siblings}) == 1
    one = run.get(siblings[0].id)
    assert {r.id for r in run.history(one)} >= {r.id for r in siblings}


def test_the_commands_on_a_grpo_run(trained, capsys):
    _, out = trained
    for words in (["stats"], ["show"], ["show", "--group", "0"], ["list"], ["doctor", "--offline"]):
        assert main([words[0], str(out), *words[1:]]) == 0
    printed = capsys.readouterr().out
    assert "multiply(a=2, b=3) → 6" in printed


@pytest.mark.needs(part="learn")
def test_diff_on_a_grpo_run(trained, capsys):
    _, out = trained
    assert main(["diff", str(out), str(out)]) == 0
    assert "identical: the same answers" in capsys.readouterr().out


@pytest.mark.needs(part="shapes")
def test_trls_own_completions_of_the_same_training_import_as_the_same_rollouts(trained, tmp_path):
    from rollout_plugins.shapes.importing import import_rollouts

    _, out = trained
    ours = {str(r.completion[-1]["content"]) for r in open_run(out).rollouts()}
    report = import_rollouts("trl", out, tmp_path)
    imported = open_run(tmp_path)
    assert report.rollouts > 0
    assert imported.info.reward_names == ("correct", "style")
    for rollout in imported.rollouts():
        assert str(rollout.completion[-1]["content"]) in ours
        assert rollout.rewards.keys() == {"correct", "style"}
        assert rollout.extra["note"].startswith("note ")
    called = [c for r in imported.rollouts() for c in r.tool_calls if c.name == "multiply"]
    assert any(c.arguments == {"a": 2, "b": 3} and c.result == "6" for c in called)


class Looks(TrainerCallback):
    """Reads the run while it is being written."""

    def __init__(self, out):
        self.out, self.seen, self.run = out, [], None

    def on_step_end(self, args, state, control, **kwargs):
        if self.run is None:
            self.run = open_run(self.out)
        self.run.refresh()
        counted = self.run.sql("select count(*) as n from rollouts").to_pylist()[0]["n"]
        self.seen.append(
            (len(self.run), counted, len(list(self.run.rollouts(step="last"))), self.run.health.damaged.copy())
        )


def test_a_live_run_is_read_while_it_trains(tmp_path):
    looks = Looks(tmp_path / "out")
    trainer = make(tmp_path, ["6", "no"], max_steps=3, callbacks=[RolloutPluginCallback(sync=True), looks])
    trainer.train()
    assert looks.seen == [(4, 4, 4, {}), (8, 8, 4, {}), (12, 12, 4, {})]


def test_an_rloo_run(tmp_path):
    trainer = make(tmp_path, ["It is 6.", "no"], cls=RLOO, rewards=correct, max_steps=2)
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    run = open_run(tmp_path / "out")
    assert run.info.trainer == "RLOO"
    assert [r.reward for r in run.rollouts(order="-reward", limit=2)] == [1.0, 1.0]
    assert run.sql("select sum(advantage) as a from rollouts").to_pylist()[0]["a"] == pytest.approx(0, abs=1e-4)


def test_a_resumed_run_leaves_out_what_was_done_again(tmp_path):
    def start(steps):
        trainer = make(tmp_path, ["6", "no"], max_steps=steps, save_strategy="steps", save_steps=2)
        trainer.add_callback(RolloutPluginCallback())
        return trainer

    start(3).train()
    start(4).train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    run = open_run(tmp_path / "out")
    assert [(row["step"], row["rollouts"]) for row in run.stats()] == [(step, 4) for step in (1, 2, 3, 4)]
    assert {r.attempt for r in run.rollouts(step=3)} == {2}
    assert run.count(step=3, superseded=True) == 8


@pytest.mark.slow
def test_two_ranks_read_as_one_run(tmp_path):
    run_worker("read", tmp_path, ranks=2, RIG_MODEL=tiny_model(tmp_path))
    run = open_run(tmp_path / "out")
    assert [(row["step"], row["rollouts"]) for row in run.stats()] == [(1, 4), (2, 4)]
    assert [(r.rank, r.index) for r in run.rollouts(step=1)] == [(0, 0), (0, 1), (1, 2), (1, 3)]
    assert {r.rank for r in run.rollouts(rank=1)} == {1}
    assert sum(row["tool_calls"] for row in run.stats()) == len(run.sql("select * from tool_calls"))


@pytest.mark.parametrize(
    ("template", "tools", "prefix", "parses", "advice"),
    [
        ("qwen3.jinja", "yes", "no", "yes", "TRL puts its own training template in its place"),
        ("qwen2_5.jinja", "yes", "yes", "yes", ""),
        ("llama3.jinja", "no", None, "no", "take a model made for tools"),
    ],
)
def test_the_doctors_table_of_chat_templates(tmp_path, template, tools, prefix, parses, advice):
    import trl

    made = tokenizer()
    made.chat_template = (Path(trl.__file__).parent / "chat_templates" / template).read_text()
    made.save_pretrained(tmp_path)
    row = chat_templates.facts(str(tmp_path))
    assert (row["tools"], row["parses answers"]) == (tools, parses)
    assert prefix in {None, row["prefix-preserving"]}
    assert advice in " ".join(row["do"])
    if template.startswith("qwen"):
        assert (row["end of turn"], row["ends its turn"]) == ("<|im_end|>", "yes")


def test_the_doctor_says_when_turns_do_not_end_where_generation_does(tmp_path, capsys):
    made = tokenizer()
    made.eos_token = "<|endoftext|>"
    made.save_pretrained(tmp_path)
    assert main(["doctor", str(tmp_path), "--offline", "--json", "--tokenizer", str(tmp_path), "/no/where"]) == 0
    row, missing = json.loads(capsys.readouterr().out)["tokenizers"]
    assert row["ends its turn"] == "no"
    assert any("set generation_config.eos_token_id to <|im_end|>" in advice for advice in row["do"])
    assert missing["do"][0].startswith("cannot be loaded")
