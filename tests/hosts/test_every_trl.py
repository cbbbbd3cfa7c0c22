"""What must hold on every supported TRL, from the floor up. `.ci/matrix` runs this file on each of them."""

import pytest
from rig import GRPO, RLOO, dataset, half, make, tokenizer
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


TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def seeing(folder):
    """A LLaVA of a few thousand weights, which needs no torchvision on any transformers."""
    import torch
    from transformers import CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor, Qwen3Config

    try:
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil as Pictures
    except ImportError:
        from transformers import CLIPImageProcessor as Pictures
    tok = tokenizer()
    tok.add_special_tokens({"additional_special_tokens": ["<image>"]})
    processor = LlavaProcessor(
        Pictures(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}), tok, patch_size=14,
        vision_feature_select_strategy="default", num_additional_image_tokens=1, image_token="<image>", chat_template=TEMPLATE,
    )  # fmt: skip
    torch.manual_seed(0)
    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14,
        projection_dim=16,
    )  # fmt: skip
    text = Qwen3Config(
        vocab_size=len(tok), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=4096, tie_word_embeddings=False,
    )  # fmt: skip
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_id=tok.convert_tokens_to_ids("<image>"), image_seq_length=4
    )
    model = LlavaForConditionalGeneration(config)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = tok.eos_token_id, tok.pad_token_id
    model.save_pretrained(folder / "seeing")
    processor.save_pretrained(folder / "seeing")
    return str(folder / "seeing"), processor


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
