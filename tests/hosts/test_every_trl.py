"""What must hold on every supported TRL, from the floor up. `.ci/matrix` runs this file on each of them."""

from importlib import import_module

import pytest
from rig import GRPO, RLOO, dataset, half, make, scripted, tiny_model
from seeing import seeing
from strict import same

from rollout_plugins import RolloutPluginCallback, open_run


@pytest.mark.parametrize("cls", [GRPO, RLOO])
@pytest.mark.parametrize("kind", ["messages", "text"])
def test_text_rollouts_of_train_and_eval_are_whole(tmp_path, cls, kind):
    from datasets import Dataset

    texts = Dataset.from_dict({"prompt": [f"hello {i}" for i in range(8)], "answer": list(range(8))})
    rows = texts if kind == "text" else dataset(answer=list(range(8)))

    def second(completions, **kwargs):
        return [None, 0.5, 0.25, 0.1]

    trainer = make(
        tmp_path, cls=cls, rows=rows, eval_rows=rows.select(range(4)), rewards=[half, second], max_steps=4,
        eval_strategy="steps", eval_steps=2, logging_steps=4, num_iterations=2,
    )  # fmt: skip
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    run = open_run(tmp_path / "out")
    for split in ("train", "eval"):
        truth = [row for row in trainer.truth if row["split"] == split]
        stored = list(run.rollouts(split=split))
        assert len(stored) == len(truth) >= 8
        for rollout, row in zip(stored, truth, strict=True):
            prompt, completion = row["prompt"], row["completion"]
            if kind == "text":
                prompt = [{"role": "user", "content": prompt}]
                completion = [{"role": "assistant", "content": completion}]
            assert same(list(rollout.prompt), prompt)
            assert same(list(rollout.completion), completion)
            assert rollout.prompt_is_text is rollout.completion_is_text is (kind == "text")
            assert rollout.advantage == pytest.approx(row["advantage"])
            assert rollout.rewards["half"] == row["rewards"][0]
            assert rollout.columns["answer"] == row["row"]["answer"]
            assert rollout.completion_tokens > 0
            assert rollout.finish in {"stop", "length"}
        assert {rollout.rewards["second"] for rollout in stored} == {None, 0.5, 0.25, 0.1}
    assert run.info.reward_names == ("half", "second")
    assert run.info.versions["trl"]


@pytest.mark.parametrize("cls", [GRPO, RLOO])
def test_evaluate_alone_is_recorded_when_given_in_callbacks(tmp_path, cls):
    trainer = make(tmp_path, cls=cls, eval_rows=dataset(6), callbacks=[RolloutPluginCallback()])
    trainer.evaluate()
    assert len(open_run(tmp_path / "out")) == len(trainer.truth) == 12


@pytest.mark.parametrize("cls", [GRPO, RLOO])
def test_losses_are_the_same_with_and_without(tmp_path, cls):
    losses = []
    for name in ("without", "with"):
        trainer = make(tmp_path / name, cls=cls, max_steps=3, learning_rate=1e-3)
        if name == "with":
            trainer.add_callback(RolloutPluginCallback())
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[0] == losses[1]


@pytest.mark.parametrize("cls", [GRPO, RLOO])
def test_images_of_the_dataset_are_kept_once_each(tmp_path, cls):
    from PIL import Image

    pictures = [Image.new("RGB", (32, 28), (60 * i, 90, 160)) for i in range(4)]
    path, processor = seeing(tmp_path)
    trainer = make(
        tmp_path, cls=cls, rows=dataset(4, image=pictures), max_steps=4, max_prompt_length=None, model=path,
        processing_class=processor,
    )  # fmt: skip
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    run = open_run(tmp_path / "out")
    rollouts = list(run.rollouts())
    assert len(rollouts) == 16
    assert len(list((run.dir / "media").iterdir())) == 4
    colours = {picture.getpixel((0, 0)) for picture in pictures}
    for rollout in rollouts:
        (image,) = rollout.images
        assert Image.open(run.dir / image.path).convert("RGB").getpixel((0, 0)) in colours
        number = int(str(rollout.prompt).split("hello ")[1][0])
        assert Image.open(run.dir / image.path).convert("RGB").getpixel((0, 0)) == pictures[number].getpixel((0, 0))


def replaying():
    """TRL's trainer with a replay buffer and its config; None where this TRL has none."""
    try:
        module = import_module("trl.experimental.grpo_with_replay_buffer")
    except ImportError:
        return None
    return module.GRPOWithReplayBufferTrainer, module.GRPOWithReplayBufferConfig


@pytest.mark.skipif(replaying() is None, reason="this TRL has no trainer with a replay buffer")
def test_short_answers_do_not_hide_which_rollouts_a_replay_buffer_replaced(tmp_path):
    """The second batch has no spread, so its first group gives way to that of the first batch. All answers are "4"."""
    trainer_class, config_class = replaying()
    rewards = iter([0.0, 1.0, 2.0, 5.0, 7.0, 7.0, 7.0, 7.0])
    args = config_class(
        output_dir=str(tmp_path / "out"), per_device_train_batch_size=4, num_generations=2, max_completion_length=8,
        report_to=[], use_cpu=True, bf16=False, max_steps=2, save_strategy="no", disable_tqdm=True, seed=7,
        replay_buffer_size=4, shuffle_dataset=False, gradient_checkpointing=False,
    )  # fmt: skip
    trainer = trainer_class(
        model=tiny_model(tmp_path), args=args, train_dataset=dataset(8),
        reward_funcs=lambda completions, **kwargs: [next(rewards) for _ in completions],
    )  # fmt: skip
    trainer.model.generate = scripted(trainer, ["4"])
    trainer.add_callback(RolloutPluginCallback())
    trainer.train()
    run = open_run(tmp_path / "out")
    assert [one.marks.get("trained") for one in run.rollouts()] == [None] * 4 + ["no: replaced"] * 2 + [None] * 2
    assert (run.health.drops, run.health.untrained) == ({}, {"replaced": 2})
