"""Prompts have ids that join runs, steps and datasets."""

import pyarrow as pa
import pytest
from datasets import Dataset
from image_rig import noise
from loops import recorder_in
from reading import one, write
from rig import dataset, make

from rollout_plugins import RolloutPluginCallback, open_run
from rollout_plugins.learn.prompt_ids import prompt_id, prompt_ids, tables_with_ids


def ids_of(run):
    return pa.concat_tables(tables_with_ids(run, ["id"]))["prompt_id"].to_pylist()


def stored(folder, *prompts, columns=({},)):
    rows = [
        one(1, index, prompt=prompt, group=index, columns=columns[index % len(columns)])
        for index, prompt in enumerate(prompts)
    ]
    return ids_of(open_run(write(folder, rows)))


def user(text):
    return ({"role": "user", "content": text},)


@pytest.mark.parametrize("kind", ["messages", "text"])
def test_a_trainers_rollouts_have_the_ids_of_its_datasets_rows(tmp_path, kind):
    rows = dataset(4, index=[7, 8, 9, 10], answer=["a", "b", "c", "d"])
    if kind == "text":
        rows = Dataset.from_list([{**row, "prompt": row["prompt"][0]["content"]} for row in rows])
    make(tmp_path, rows=rows, max_steps=2, callbacks=[RolloutPluginCallback(dir=tmp_path / "runs")]).train()
    run = open_run(tmp_path / "runs")
    by_row = {row["index"]: prompt_id(row) for row in rows}
    assert len(set(by_row.values())) == 4
    assert ids_of(run) == [by_row[rollout.columns["index"]] for rollout in run]


def test_the_same_question_in_two_rows_of_the_dataset_or_for_two_seeds_is_two_prompts(tmp_path):
    rows = ({"index": 1}, {"index": 2}, {"index": 1, "seed": 5}, {"index": 1, "answer": "x"})
    first, second, seeded, answered = stored(tmp_path, *[user("play")] * 4, columns=rows)
    assert len({first, second, seeded}) == 3
    assert first == answered


def test_roles_calls_and_where_a_message_ends_count(tmp_path):
    def asked(arguments):
        function = {"name": "f", "arguments": arguments}
        return ({"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},)

    prompts = [
        user("ab"), ({"role": "system", "content": "ab"},), (*user("a"), *user("b")), user("a\nb"), user("a:1:b"),
        asked({"x": 1}), asked({"x": 2}),
    ]  # fmt: skip
    found = stored(tmp_path, *prompts, *prompts)
    assert len(set(found)) == len(prompts)
    assert found[: len(prompts)] == found[len(prompts) :] == [prompt_id({"prompt": list(one)}) for one in prompts]


def test_images_count_by_what_they_show(tmp_path):
    def shown(image):
        return [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": "what?"}]}]

    with recorder_in(tmp_path) as recorder:
        images = (noise(1), noise(2), noise(1).copy())
        recorder.record(1, [{"prompt": shown(image), "completion": "a cat"} for image in images])
    first, second, same = ids_of(open_run(tmp_path))
    assert first == same != second
    assert first == prompt_id({"prompt": shown(noise(1))})
    beside = {"prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}]}
    assert first == prompt_id({**beside, "image": noise(1)}) == prompt_id({**beside, "images": [noise(1)]})


def test_ids_do_not_depend_on_how_the_rows_are_batched(tmp_path):
    run = open_run(write(tmp_path, [one(step, index) for step in range(1, 4) for index in range(4)]))
    table = run.table(["prompt", "columns"])
    whole = prompt_ids(table).to_pylist()
    apart = [prompt_ids(table.slice(start, 5)).to_pylist() for start in range(0, table.num_rows, 5)]
    assert whole == [name for some in apart for name in some]
    assert prompt_ids(table.slice(0, 0)).to_pylist() == []
    assert whole[0] == "215c9e2ef328bc9d"  # the same in every version
