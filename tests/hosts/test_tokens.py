"""Token ids, masks and log-probabilities in the store: typed, small, in columns of their own, and read only when asked."""

import sys
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from store_rig import RunWriter, open_run, rollouts, run_in, written

from rollout_plugins import Tokens
from rollout_plugins.reading.row_reader import Rows


def made(count=64, prompt=400, answer=1600):
    """Rollouts of an agent: ids as a language has them, tool results between the turns, and log-probabilities."""
    dice = np.random.default_rng(3)
    (base,) = rollouts(1)

    def ids(length):
        return np.minimum(dice.zipf(1.2, length), 150_000).tolist()

    for number in range(count):
        mask = ([1] * 300 + [0] * 100) * (answer // 400)
        logprobs = -dice.exponential(0.4, answer).astype(np.float32)
        tokens = Tokens(prompt=ids(prompt), completion=ids(answer), mask=mask, logprobs=logprobs.tolist())
        yield replace(base, id=str(number), index=number, tokens=tokens)


def write(folder, some):
    writer = RunWriter(run_in(folder))
    writer.write("train", some)
    journal = sum(path.stat().st_size for path in folder.rglob("*.arrows"))
    writer.close()
    (file,) = folder.rglob("*.parquet")
    return file, journal


def sizes(file, name):
    """Compressed bytes of each column of tokens."""
    group = pq.ParquetFile(file).metadata.row_group(0)
    columns = [group.column(place) for place in range(group.num_columns)]
    return sum(c.total_compressed_size for c in columns if c.path_in_schema.startswith(f"tokens.{name}"))


def test_a_token_takes_few_bytes(tmp_path):
    some = list(made())
    tokens = len(some) * 2000
    file, journal = write(tmp_path, some)
    ids, mask, logprobs = (
        sizes(file, "prompt") + sizes(file, "completion"),
        sizes(file, "mask"),
        sizes(file, "logprobs"),
    )
    assert ids / tokens < 2.5
    assert mask / tokens < 0.01
    assert logprobs / tokens < 3.5
    assert journal / tokens < 12
    without, _ = write(tmp_path / "without", [replace(rollout, tokens=None) for rollout in some])
    assert sizes(without, "") < 1000


def test_they_come_back_equal(tmp_path):
    some = list(made(4))
    found, lost = written(tmp_path, some)
    assert [one.tokens for one in found] == [one.tokens for one in some]
    run = open_run(tmp_path)
    assert [one.tokens for one in run.rollouts()] == [None] * 4
    assert run.get("2").tokens == some[2].tokens
    assert lost == []
    exact = Tokens(completion=[2**31 - 1, 0], logprobs=[0.1, 16777217.0], trainer_logprobs=[float("-inf"), -0.0])
    (found,), lost = written(tmp_path / "exact", [replace(some[0], tokens=exact)])
    assert (found.tokens, lost) == (exact, [])


def test_arrays_and_tensors_are_lists_of_numbers_too(tmp_path):
    (base,) = rollouts(1)
    tokens = Tokens(
        prompt=np.array([1, 2]), completion=torch.tensor([3, 4]), mask=(1, 0), logprobs=torch.tensor([-0.5, 0])
    )
    _, lost = written(tmp_path, [replace(base, tokens=tokens)])
    kept = Tokens(prompt=[1, 2], completion=[3, 4], mask=[1, 0], logprobs=[-0.5, 0.0])
    assert (open_run(tmp_path).get("0").tokens, lost) == (kept, [])


@pytest.mark.parametrize("bad", [["x"], [2**40], 7, [None, [1]], object()])
def test_what_is_not_a_list_of_ids_costs_only_itself(tmp_path, bad):
    base, other = rollouts(2)
    tokens = Tokens(prompt=[1], completion=bad, logprobs=[-1.0])
    found, lost = written(tmp_path, [replace(base, tokens=tokens), replace(other, tokens=Tokens(prompt=[2]))])
    run = open_run(tmp_path)
    assert run.get("0").tokens == Tokens(prompt=[1], logprobs=[-1.0])
    assert run.get("1").tokens == Tokens(prompt=[2])
    assert "lost:tokens.completion" in found[0].marks
    assert len(lost) == 1


def test_reading_rollouts_does_not_touch_them_unasked(tmp_path, monkeypatch):
    write(tmp_path, list(made(8)))
    asked = set()
    take = Rows.take
    monkeypatch.setattr(Rows, "take", lambda self, p, r, names: asked.update(names) or take(self, p, r, names))
    run = open_run(tmp_path)
    assert len(list(run.rollouts())) == len(run.siblings("1")) == len(list(run.rollouts(where="reward >= 0"))) == 8
    assert "tokens" in asked  # group() reads the one it was asked for
    asked.clear()
    assert len(list(run.rollouts(order="-reward").page(2, 3))) == 3
    run.table(["reward", "completion_tokens"])
    assert "tokens" not in asked
    assert run.rollouts(tokens=True)[0].tokens is not None
    assert "tokens" in asked


def test_reading_a_page_costs_no_memory_for_the_tokens_of_others(tmp_path):
    write(tmp_path, list(made(32)))
    one = sys.getsizeof([0] * 2000)
    (rollout,) = open_run(tmp_path).rollouts(tokens=True).page(3, 1)
    assert sys.getsizeof(rollout.tokens.completion) < one
    assert len(rollout.tokens.completion) == 1600
