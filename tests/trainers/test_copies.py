"""Trainers that are copies of TRL's source, as Unsloth makes them: the same rollouts as from TRL's own class."""

import logging
from importlib import import_module

import pytest
import rig
from copies import copy_of, facts
from finished_trainings import LATE, trained
from PIL import Image
from seeing import seeing
from trainers import KINDS, kinds, make
from trl import GRPOTrainer, RLOOTrainer

from rollout_plugins import RolloutPluginCallback, open_run


@pytest.mark.slow
@kinds
def test_a_copy_gives_the_rollouts_of_the_class_it_was_copied_from(tmp_path, monkeypatch, caplog, name):
    kind = KINDS[name]
    module = import_module(kind.module)
    monkeypatch.setattr(module, kind.trainer, copy_of(getattr(module, kind.trainer)))
    callback = RolloutPluginCallback(tokens=True, rendered=True)
    trainer = make(tmp_path, name, [callback] if LATE[name].startswith("in callbacks") else None)
    if not LATE[name].startswith("in callbacks"):
        trainer.add_callback(callback)
    with caplog.at_level(logging.WARNING, "rollout_plugins"):
        trainer.train()
    run, pristine = open_run(tmp_path / "out"), trained(name, LATE[name])
    stored = list(run.rollouts(tokens=True))
    assert [facts(rollout) for rollout in stored] == [facts(rollout) for rollout in pristine.rollouts]
    assert len(stored) > 0
    assert run.health.drops == pristine.run.health.drops == {}
    assert [
        r.getMessage() for r in caplog.records if r.name == "rollout_plugins" and "expected" in r.getMessage()
    ] == []


SCORING = "self._calculate_rewards(inputs, prompts, completions, completion_ids_list)"
TEXT = SCORING.replace("prompts,", "self._tokenizer.batch_decode(prompt_ids_list),").replace(
    "completions,", "self._tokenizer.batch_decode(completion_ids_list, skip_special_tokens=True),"
)


@pytest.mark.parametrize("trl_class", [GRPOTrainer, RLOOTrainer])
def test_messages_and_images_survive_where_rewards_are_given_rendered_text(tmp_path, trl_class):
    pictures = [Image.new("RGB", (32, 28), (60 * i, 90, 160)) for i in range(4)]
    path, processor = seeing(tmp_path)
    kept, given = [], []

    def rewards(prompts, completions, **kwargs):
        given.extend(prompts)
        return [float(i % 2) for i in range(len(completions))]

    for cls in (trl_class, copy_of(trl_class, scoring=(SCORING, TEXT))):
        folder = tmp_path / cls.__name__
        trainer = rig.make(
            folder, cls=cls, rows=rig.dataset(4, image=pictures), rewards=rewards, max_steps=2, model=path,
            processing_class=processor,
        )  # fmt: skip
        trainer.add_callback(RolloutPluginCallback())
        trainer.train()
        kept.append([facts(rollout) for rollout in open_run(folder / "out").rollouts()])
    assert [type(prompt) for prompt in given] == [list] * 8 + [str] * 8
    assert len(kept[1]) == 8
    assert kept[1] == kept[0]
    assert all(len(rollout["images"]) == 1 for rollout in kept[1])
