"""Exported datasets, trained one step by TRL's own SFT, DPO, KTO and GRPO trainers: which tokens carry loss."""

import json

import pyarrow.parquet as pq
import pytest
from datasets import load_dataset
from reading import one, write
from rig import call, make, tiny_model, tokenizer
from tools import multiply, search
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, KTOConfig, KTOTrainer, SFTConfig, SFTTrainer

from rollout_plugins import RolloutPluginCallback, hookimpl, open_run
from rollout_plugins.cli.main import main
from rollout_plugins.errors import RolloutPluginsError, RunError
from rollout_plugins.learn.prompt_ids import prompt_id
from rollout_plugins.learn.training_data import export_training_data

RESULT = "42000042"


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A real GRPO run with tools: of each pair of answers one calls `multiply`, the other `search` and is wrong."""
    folder = tmp_path_factory.mktemp("shop")
    asked = [call("multiply", {"a": 42000042, "b": 1}), call("search", {"query": "shoes"})] * 2
    answers = ["the answer is right", "the answer is wrong"] * 2

    def correct(completions, **kwargs):
        return [float("right" in completion[-1]["content"]) for completion in completions]

    trainer = make(
        folder, [*asked, *answers], tools=[multiply, search], rewards=correct, max_tool_calling_iterations=2,
        max_completion_length=300, callbacks=[RolloutPluginCallback(tokens=True, dir=folder / "runs")],
    )  # fmt: skip
    trainer.train()
    return open_run(folder / "runs")


def options(folder, **more):
    return {
        "output_dir": str(folder), "max_steps": 1, "per_device_train_batch_size": 2, "report_to": [], "use_cpu": True,
        "bf16": False, "save_strategy": "no", "disable_tqdm": True, "gradient_checkpointing": False, **more,
    }  # fmt: skip


def batches_of(cls, config, path, folder):
    """Train one step on the file, as the card says, and return the batches that a loss was computed of."""
    batches = []

    class Seen(cls):
        def compute_loss(self, model, inputs, *args, **kwargs):
            batches.append({name: value.clone() for name, value in inputs.items() if hasattr(value, "clone")})
            return super().compute_loss(model, inputs, *args, **kwargs)

    tok = tokenizer()
    dataset = load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(folder / "cache"))
    trainer = Seen(tiny_model(folder), args=config, train_dataset=dataset, processing_class=tok)
    trainer.train()
    assert trainer.state.global_step == 1
    return batches, tok


def trained_by_sft(batches, tok):
    return [tok.decode(row[row != -100]) for batch in batches for row in batch["labels"]]


def trained_after_the_prompt(batches, tok):
    """What DPO and KTO train on: tokens of the completion mask."""
    texts = []
    for batch in batches:
        masks = batch["completion_mask"].bool()
        texts += [tok.decode(ids[mask]) for ids, mask in zip(batch["input_ids"], masks, strict=True)]
    return texts


def test_sft_trains_on_the_best_of_each_group_and_on_no_tool_result(shop, tmp_path):
    exported = export_training_data(shop, "sft", tmp_path / "sft", threshold=1.0)
    assert exported.rows == 2
    assert "assistant_only_loss=True" in exported.card.read_text()
    config = SFTConfig(**options(tmp_path, assistant_only_loss=True))
    trained = trained_by_sft(*batches_of(SFTTrainer, config, exported.path, tmp_path))
    assert len(trained) == 2
    for text in trained:
        assert '"name": "multiply"' in text
        assert "the answer is right" in text
        assert "<tool_response>" not in text
        assert text.count(RESULT) == 1  # in the arguments, not in the result
        assert "hello" not in text
    config = SFTConfig(**options(tmp_path / "all"))
    everything = trained_by_sft(*batches_of(SFTTrainer, config, exported.path, tmp_path))
    assert all("<tool_response>" in text for text in everything), "without the option, this test could not fail"


def test_dpo_trains_on_the_first_turn_that_differs_and_on_no_tool_result(shop, tmp_path):
    exported = export_training_data(shop, "dpo", tmp_path / "dpo", margin=0.5)
    assert exported.rows == 2
    trained = trained_after_the_prompt(
        *batches_of(DPOTrainer, DPOConfig(**options(tmp_path)), exported.path, tmp_path)
    )
    assert len(trained) == 4
    for chosen, rejected in zip(trained[:2], trained[2:], strict=True):
        assert '"name": "multiply"' in chosen
        assert '"name": "search"' in rejected
    for text in trained:
        assert "<tool_response>" not in text
        assert "the answer is" not in text


def test_dpo_with_whole_completions_trains_on_tool_results(shop, tmp_path):
    exported = export_training_data(shop, "dpo", tmp_path / "dpo", whole=True)
    trained = trained_after_the_prompt(
        *batches_of(DPOTrainer, DPOConfig(**options(tmp_path)), exported.path, tmp_path)
    )
    assert all("<tool_response>" in text and "the answer is" in text for text in trained)
    assert "results of tools included" in exported.card.read_text()


def test_kto_trains_on_the_first_turn_that_differs_with_its_label(shop, tmp_path):
    exported = export_training_data(shop, "kto", tmp_path / "kto")
    table = pq.read_table(exported.path)
    assert table["label"].to_pylist() == [True, False, True, False]
    config = KTOConfig(**options(tmp_path, per_device_train_batch_size=4))
    batches, tok = batches_of(KTOTrainer, config, exported.path, tmp_path)
    for text in (trained := trained_after_the_prompt(batches, tok)):
        assert "<tool_response>" not in text
    assert sum('"name": "multiply"' in text for text in trained) >= 2
    assert sum('"name": "search"' in text for text in trained) >= 2


def test_prompts_are_a_dataset_that_grpo_trains_on(shop, tmp_path):
    exported = export_training_data(shop, "prompts", tmp_path / "prompts")
    dataset = load_dataset("parquet", data_files=str(exported.path), split="train", cache_dir=str(tmp_path / "cache"))
    assert [prompt_id(row) for row in dataset] == dataset["prompt_id"]
    config = GRPOConfig(**options(tmp_path, num_generations=2, max_completion_length=4))
    reward = lambda completions, **kwargs: [1.0] * len(completions)  # noqa: E731
    trainer = GRPOTrainer(tiny_model(tmp_path), reward_funcs=reward, args=config, train_dataset=dataset)
    trainer.train()
    assert trainer.state.global_step == 1


def test_messages_hold_their_own_keys_alone(shop, tmp_path):
    exported = export_training_data(shop, "sft", tmp_path / "sft")
    exported_all = export_training_data(shop, "kto", tmp_path / "kto", whole=True)
    for path in (exported.path, exported_all.path):
        for row in load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache")):
            assert [tool["function"]["name"] for tool in row["tools"]] == ["multiply", "search"]
            assert "query" not in row["tools"][0]["function"]["parameters"]["properties"]
            (asking,) = [message for message in row["completion"] if "tool_calls" in message]
            (asked,) = asking["tool_calls"]
            assert asked["function"]["arguments"] in ({"a": 42000042, "b": 1}, {"query": "shoes"})
            assert None not in [value for message in row["completion"] for value in message.values()]
            assert {"role", "content"} <= row["prompt"][0].keys() <= {"role", "content"}


def test_the_dataset_loads_from_its_folder_as_the_card_configures_it(shop, tmp_path):
    export_training_data(shop, "sft", tmp_path / "sft")
    assert len(load_dataset(str(tmp_path / "sft"), split="train", cache_dir=str(tmp_path / "cache"))) == 2


def test_texts_that_render_to_other_tokens_than_recorded_are_reported(shop, tmp_path):
    changed = export_training_data(shop, "dpo", tmp_path / "changed", tokenizer=tokenizer())
    # Qwen3's template adds an empty <think> block to the last answer, which this model did not write.
    assert (changed.checked, len(changed.differing)) == (4, 4)
    assert changed.differing[0] in changed.card.read_text()
    plain = tokenizer()
    think = r"'\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n')"
    assert think in plain.chat_template
    plain.chat_template = plain.chat_template.replace(think, r"'\n' + content")
    exact = export_training_data(shop, "dpo", tmp_path / "exact", tokenizer=plain)
    assert (exact.checked, exact.differing) == (4, [])
    assert "All 4 rollouts render to the token ids that were recorded" in exact.card.read_text()


# --- rules, on runs that the real writer wrote -----------------------------------------------------------------------


def conversation(text, *, tool=None):
    said = [{"role": "assistant", "content": text}]
    return tuple(
        said if tool is None else [*said, {"role": "tool", "content": tool}, {"role": "assistant", "content": "end"}]
    )


def write_run(folder, rollouts):
    return open_run(write(folder, rollouts))


def rollout(index, reward, text="", *, step=1, question="q", tool=None, **fields):
    fields = {"finish": "stop", "completion_tokens": 10, **fields}
    return one(
        step, index, reward=reward, prompt=({"role": "user", "content": question},),
        completion=conversation(text or f"answer {step} {index}", tool=tool), tool_calls=(), group=0, group_size=4, **fields,
    )  # fmt: skip


def rows(exported):
    return pq.read_table(exported.path).to_pylist()


def texts(conversation):
    return [json.loads(text)["content"] for text in conversation]


def test_sft_leaves_out_what_broke_off_and_what_is_below_the_threshold(tmp_path):
    run = write_run(tmp_path / "run", [
        rollout(0, 1.0, finish="length"), rollout(1, 0.5), rollout(2, 0.2), rollout(3, None),
        *[rollout(index, 0.1, step=2) for index in range(2)],
    ])  # fmt: skip
    exported = export_training_data(run, "sft", tmp_path / "sft", threshold=0.3)
    assert [row["score"] for row in rows(exported)] == [0.5]
    assert dict(exported.left_out) == {
        "without a finite reward": 1,
        "broken off (length, tool limit or error)": 1,
        "not the best of their group": 1,
        "reward below 0.3": 2,
    }


def test_equal_content_becomes_one_row(tmp_path):
    run = write_run(tmp_path / "run", [rollout(0, 1.0, "same", step=step) for step in (1, 2, 3)])
    exported = export_training_data(run, "sft", tmp_path / "sft")
    assert exported.rows == 1
    assert exported.left_out["rows with the content of an earlier one"] == 2


def test_of_equal_scores_the_pair_that_differs_least_in_length_is_taken(tmp_path):
    run = write_run(tmp_path / "run", [
        rollout(0, 1.0, completion_tokens=500), rollout(1, 1.0, completion_tokens=90),
        rollout(2, 0.0, completion_tokens=10), rollout(3, 0.0, completion_tokens=80),
    ])  # fmt: skip
    (pair,) = rows(export_training_data(run, "dpo", tmp_path / "dpo"))
    assert (pair["chosen_id"][-1], pair["rejected_id"][-1]) == ("1", "3")
    assert export_training_data(run, "dpo", tmp_path / "all", pairs="all").rows == 4


def test_shared_turns_become_part_of_the_prompt(tmp_path):
    shared = ({"role": "assistant", "content": "look"}, {"role": "tool", "content": "page"})
    good, bad = ({"role": "assistant", "content": text} for text in ("good", "bad"))
    run = write_run(tmp_path / "run", [
        one(1, index, reward=score, finish="stop", group=0, prompt=({"role": "user", "content": "q"},),
            completion=(*shared, last), tool_calls=())
        for index, score, last in ((0, 1.0, good), (1, 0.0, bad))
    ])  # fmt: skip
    (pair,) = rows(export_training_data(run, "dpo", tmp_path / "dpo"))
    assert texts(pair["prompt"]) == ["q", "look", "page"]
    assert (texts(pair["chosen"]), texts(pair["rejected"])) == (["good"], ["bad"])
    labelled = rows(export_training_data(run, "kto", tmp_path / "kto"))
    assert [texts(row["prompt"]) for row in labelled] == [["q", "look", "page"]] * 2


def test_a_pair_that_only_its_tools_tell_apart_is_left_out(tmp_path):
    run = write_run(tmp_path / "run", [rollout(0, 1.0, "look", tool="a"), rollout(1, 0.0, "look", tool="b")])
    with pytest.raises(RunError, match="where the model wrote the same and a tool answered differently"):
        export_training_data(run, "dpo", tmp_path / "dpo")
    assert not (tmp_path / "dpo").exists()


def test_kto_advises_the_weights_that_trl_advises(tmp_path, caplog):
    run = write_run(tmp_path / "run", [rollout(index, float(index == 0)) for index in range(4)])
    exported = export_training_data(run, "kto", tmp_path / "kto", threshold=0.5)
    assert exported.advised_weights == {"desirable_weight": 3.0, "undesirable_weight": 1.0}
    config = KTOConfig(**options(tmp_path, per_device_train_batch_size=4, desirable_weight=3.0))
    batches_of(KTOTrainer, config, exported.path, tmp_path)
    assert "don't seem to be in an ideal range" not in caplog.text


def test_held_out_prompts_are_excluded_by_id_and_so_are_evaluated_ones(tmp_path):
    run = write_run(tmp_path / "run", [
        rollout(0, 1.0, question="a"), rollout(0, 1.0, step=2, question="b"), rollout(0, 1.0, step=3, question="c"),
        rollout(0, 1.0, step=4, question="c", split="eval", id="r1.1.e4.0.0"),
    ])  # fmt: skip
    held_out = [prompt_id({"prompt": [{"role": "user", "content": "b"}]})]
    exported = export_training_data(run, "sft", tmp_path / "sft", held_out=held_out)
    assert [texts(row["prompt"]) for row in rows(exported)] == [["a"]]
    assert exported.left_out["with a held-out prompt"] == 2
    assert export_training_data(run, "sft", tmp_path / "all", include_evaluated=True).rows == 3


class Blank:
    name, required = "blank", True

    @hookimpl
    def on_rollout(self, rollout):
        from dataclasses import replace

        return replace(rollout, completion=({"role": "assistant", "content": "[blank]"},))

    def clean(self, value):
        return value


def test_a_required_plugin_sees_what_is_exported(tmp_path):
    run = write_run(tmp_path / "run", [rollout(0, 1.0, "secret")])
    exported = export_training_data(run, "sft", tmp_path / "sft", plugins=[Blank()])
    assert [texts(row["completion"]) for row in rows(exported)] == [["[blank]"]]


def test_the_query_in_the_card_selects_the_candidates(tmp_path):
    run = write_run(
        tmp_path / "run", [rollout(index, float(index), step=step) for step in (1, 2) for index in range(4)]
    )
    exported = export_training_data(run, "kto", tmp_path / "kto", step=2, where="reward > 0")
    assert exported.sql in exported.card.read_text()
    assert run.sql(exported.sql).num_rows == exported.candidates == 3


def test_a_sample_is_drawn_with_its_seed(tmp_path):
    run = write_run(tmp_path / "run", [rollout(0, 1.0, step=step) for step in range(1, 30)])
    drawn = [
        [
            row["rollout_id"]
            for row in rows(export_training_data(run, "sft", tmp_path / "sft", sample=5, seed=seed, force=True))
        ]
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert list(map(len, drawn)) == [5, 5, 5]


def test_plain_texts_stay_plain_texts(tmp_path):
    plain = {"prompt": ({"role": "user", "content": "2+2="},), "prompt_is_text": True, "completion_is_text": True}
    run = write_run(tmp_path / "run", [
        one(1, index, reward=float(index), group=0, finish="stop", tool_calls=(), completion=({"role": "assistant", "content": str(index)},), **plain)
        for index in range(2)
    ])  # fmt: skip
    (pair,) = rows(export_training_data(run, "dpo", tmp_path / "dpo"))
    assert (pair["prompt"], pair["chosen"], pair["rejected"]) == ("2+2=", "1", "0")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--to", "dpo", "--margin", "9"],
            "there is nothing to write for dpo from 2 rollouts: 2 in a group without a pair that differs by 9",
        ),
        (["--to", "sft", "--margin", "1"], "--margin is for --to dpo, not for --to sft"),
        (["--to", "jsonl", "--margin", "1"], "--margin is for --to dpo, kto, prompts, sft, not for --to jsonl"),
        (["--to", "sft", "--by", "rewrad"], "no column is named 'rewrad'; did you mean 'reward'?"),
        (["--to", "sft", "--by", "finish"], "the column 'finish' holds 'stop', which is not a number"),
        (["--to", "sft", "--exclude", "nothing.txt"], "nothing.txt does not exist, so no prompt can be excluded"),
        (["--to", "sft", "--tokenizer", "/nowhere"], "no tokenizer could be loaded from '/nowhere'"),
        (["--to", "sft", "--public"], "--public is for a dataset on the Hub"),
        (["--to", "sft", "--columns", "id"], "--columns cannot be given with --to sft"),
    ],
)
def test_wrong_input_gets_one_sentence(tmp_path, monkeypatch, capsys, words, said):
    write_run(tmp_path / "run", [rollout(0, 1.0), rollout(1, 0.0)])
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(tmp_path / "run"), *words]) == 1
    errors = capsys.readouterr().err.strip().splitlines()
    assert said in errors[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_command_says_what_it_wrote_and_does_not_replace_it(tmp_path, monkeypatch, capsys):
    write_run(tmp_path / "run", [rollout(0, 1.0), rollout(1, 0.0), rollout(2, 0.0), rollout(3, 0.0)])
    words = ["export", str(tmp_path / "run"), "--to", "kto", "-o", str(tmp_path / "out.parquet")]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "4 rows in" in out
    assert "train with desirable_weight=3" in out
    assert (tmp_path / "out.md").exists()
    assert main(words) == 1
    assert "--force" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0


def test_options_that_mean_nothing_raise(tmp_path):
    run = write_run(tmp_path / "run", [rollout(0, 1.0)])
    for kind, more in (("ppo", {}), ("dpo", {"pairs": "some"}), ("dpo", {"margin": -1.0}), ("sft", {"sample": 0})):
        with pytest.raises(RolloutPluginsError):
            export_training_data(run, kind, tmp_path / "out", **more)
