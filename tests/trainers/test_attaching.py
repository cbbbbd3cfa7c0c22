"""The hosts of these trainers come in by the hook of a third party's: when, in which order, and how to be rid of them."""

import inspect
import json
import subprocess
import sys
import threading

import pytest
from trainers import KINDS, make
from transformers import TrainerCallback

from rollout_plugins import RolloutPluginCallback, hookimpl, open_run
from rollout_plugins.hosts import HOSTS, host_for
from rollout_plugins.trainers import Trainers


class Theirs:
    """A third party's host for everything, which observes as one of ours does."""

    name = "theirs"

    def __init__(self, *others):
        self.others = others

    def matches(self, trainer):
        return any(host.matches(trainer) for host in self.others)

    def attach(self, trainer, emit, options):
        return next(host for host in self.others if host.matches(trainer)).attach(trainer, emit, options)

    def describe(self, trainer):
        return {"trainer": type(trainer).__name__}

    @hookimpl
    def register_hosts(self):
        return [self]


def trained(folder, callback, *others):
    trainer = make(folder, "gkd", list(others))
    trainer.add_callback(callback)
    trainer.train()
    return trainer


def test_they_are_known_without_autoload_too_as_they_change_and_send_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUT_PLUGINS_AUTOLOAD", "0")
    before, threads = set(threading.enumerate()), set()

    class Threads(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            threads.update(thread.name for thread in set(threading.enumerate()) - before)

    trainer = trained(tmp_path, RolloutPluginCallback(autoload=False), Threads())
    run = open_run(tmp_path / "out")
    assert (run.info.host, len(run), run.health.drops) == ("gkd", len(trainer.truth), {})
    assert "rollouts-worker" in threads
    assert "rollouts-hooks" not in threads  # that one is for plugins which could hang


def test_switched_off_they_are_missed_with_the_reason(tmp_path, caplog):
    trained(tmp_path, RolloutPluginCallback(disable=["trainers"]))
    assert "plugin 'trainers', which supports more trainers, does not run (disabled by disable=)" in caplog.text
    assert not (tmp_path / "out-rollouts").exists()


@pytest.mark.parametrize(("first", "second", "used"), [("theirs", None, "theirs"), ("trainers", "theirs", "gkd")])
def test_a_third_partys_host_is_asked_before_ours_unless_ours_was_named_first(tmp_path, first, second, used):
    named = {"theirs": Theirs(*Trainers().register_hosts()), "trainers": "trainers"}
    trainer = trained(tmp_path, RolloutPluginCallback([named[name] for name in (first, second) if name]))
    run = open_run(tmp_path / "out")
    assert (run.info.host, len(run), run.health.drops) == (used, len(trainer.truth), {})


@pytest.mark.parametrize("name", [name for name in ("grpo", "rloo", "gmpo") if KINDS[name].skip() is None])
def test_none_of_them_takes_what_the_core_knows(tmp_path, name):
    trainer = make(tmp_path, name)
    assert not [host.name for host in Trainers().register_hosts() if host.matches(trainer)]
    half_made = object.__new__(type(trainer))  # as a callback that the trainer is given may see it
    assert not [host.name for host in Trainers().register_hosts() if host.matches(half_made)]
    assert host_for(trainer, Trainers().register_hosts()) in HOSTS


def test_a_trainer_that_has_anothers_name_and_grpos_methods_is_recorded_as_grpo(tmp_path):
    """TRL 1.0 has such an SDPOTrainer."""
    trainer = make(tmp_path, "grpo")
    trainer.__class__ = type("SDPOTrainer", (type(trainer),), {"__module__": "trl.experimental.sdpo.sdpo_trainer"})
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    run = open_run(tmp_path / "out")
    assert (run.info.host, len(run), run.health.drops) == ("grpo", len(trainer.truth), {})
    assert all(one.advantage is not None for one in run)


def test_they_are_listed_as_running_and_imported_only_when_a_trainer_is_there():
    program = """
        import json, sys
        from rollout_plugins.cli.plugins import listing
        (row,) = [row for row in listing() if row["name"] == "trainers"]
        print(json.dumps([row, [name for name in sys.modules if name.startswith("rollout_plugins.trainers.")]]))
    """
    command = [sys.executable, "-c", inspect.cleandoc(program)]
    row, imported = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert (row["status"], row["hooks"], imported) == ("active", ["register_hosts"], [])


def test_knowing_them_takes_no_import_of_what_they_train_with():
    program = (
        "from rollout_plugins.trainers import Trainers; Trainers().register_hosts(); import sys; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    there = {name.partition(".")[0] for name in done.stdout.split()}
    assert there & {"torch", "transformers", "trl", "swift", "axolotl", "accelerate", "datasets"} == set()
