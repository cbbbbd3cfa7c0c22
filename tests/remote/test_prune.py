"""Pruning takes text and leaves numbers: what a run counts, charts and filters by is what it was."""

import random
import string

import pytest
from mirrored import answers, recorded
from PIL import Image

from rollout_plugins import RolloutRecorder, open_run
from rollout_plugins.cli.main import main


@pytest.fixture
def run(tmp_path):
    return recorded(tmp_path / "runs", steps=range(1, 11), run_id="mine", tokens=True)


def files(run):
    return {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


def test_figures_stay_exact_and_only_what_is_kept_has_its_text(run, capsys):
    before, rewards = open_run(run).stats(), open_run(run).table(["id", "step", "reward", "turns", "finish"])
    assert main(["prune", str(run), "--keep", "step % 5 = 0 or reward < 1", "--yes"]) == 0
    assert "the text of 24 of 40 rollouts is gone" in capsys.readouterr().out
    after = open_run(run)
    assert after.stats() == before
    assert after.table(["id", "step", "reward", "turns", "finish"]) == rewards
    assert not after.health.damaged
    for rollout in after.rollouts():
        if rollout.step % 5 == 0 or rollout.reward < 1:
            assert rollout.completion[0]["content"] == f"answer {rollout.step}.{int(rollout.reward)}"
            assert "pruned" not in rollout.marks
        else:
            assert (rollout.prompt, rollout.completion, rollout.tool_calls) == ((), (), ())
            assert rollout.marks["pruned"] == "not kept by step % 5 = 0 or reward < 1"


def test_all_that_stats_shows_stays_exact(tmp_path, capsys):
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    used = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "name": "add", "content": "2"}]
    rows = [
        {"completion": used, "rewards": {"style": 0.25, "right": 1.0}, "reward": 1.25, "finish": "stop"},
        {"completion": "cut o", "rewards": {"style": 0.1, "right": None}, "reward": float("nan"), "finish": "length"},
        {"completion": "", "error": "the sandbox is away", "finish": "error"},
    ]
    with RolloutRecorder(dir=tmp_path, run_id="mine", tokens=True) as recorder:
        for step in range(1, 5):
            recorder.record(step, [{"prompt": f"q {step}", **row} for row in rows])
            recorder.record(step, [{"prompt": f"q {step}", **row} for row in rows], split="eval")
    file = tmp_path / "mine" / "run.json"
    file.write_text(file.read_text().replace('"drops": {}', '"drops": {"queue_full": 2}'))
    capsys.readouterr()
    shown = []
    for _ in range(2):
        for words in (
            ["stats", "--json"],
            ["stats"],
            ["list"],
            ["sql", "select finish, count(*) from rollouts group by 1 order by 1"],
        ):
            assert main([words[0], str(tmp_path), *words[1:]]) == 0
        shown.append(capsys.readouterr())
        assert main(["prune", str(tmp_path), "--keep", "step = 4", "--yes"]) == 0
        assert " text" in capsys.readouterr().out
    assert shown[0] == shown[1]
    assert '"queue_full": 2' in shown[0].out
    assert '"tool_calls": 1' in shown[0].out


@pytest.mark.parametrize("damage", [lambda file: b"torn", lambda file: file[:100] + b"\xff" * 1000 + file[1100:]])
def test_a_damaged_part_stays_what_it_is_and_is_told_of(tmp_path, damage, capsys):
    for resumed_from in (None, 2, 4):
        with RolloutRecorder(dir=tmp_path, run_id="mine", resumed_from=resumed_from) as recorder:
            for step in (1, 2):
                row = {"prompt": "why?", "completion": "because", "rewards": {"right": 1.0}}
                recorder.record((resumed_from or 0) + step, [row, row])
    file = next(tmp_path.rglob("002-*.parquet"))
    file.write_bytes(content := damage(file.read_bytes()))
    assert main(["prune", str(tmp_path / "mine"), "--keep", "step = 6", "--yes"]) == 3
    assert file.read_bytes() == content
    shown = capsys.readouterr()
    assert "the text of 6 of 8 rollouts is gone" in shown.out
    assert f"data/train/{file.name} cannot be read and is left out" in shown.err


def test_nothing_is_removed_without_a_yes(run, capsys):
    before = files(run)
    assert main(["prune", str(run), "--keep", "step = 1"]) == 0
    assert "this would remove the text of 36 of 40 rollouts" in capsys.readouterr().out
    assert files(run) == before


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        ("step > 100", "is true of none of the 40 rollouts"),
        ("step > 0", "is true of all 40 rollouts"),
        ("nothing > 0", "no column is named 'nothing'"),
    ],
)
def test_a_slip_of_the_pen_prunes_nothing(run, keep, said, capsys):
    before = files(run)
    assert main(["prune", str(run), "--keep", keep, "--yes"]) == 1
    assert said in capsys.readouterr().err
    assert files(run) == before


def test_it_can_be_done_again_with_less(run, capsys):
    main(["prune", str(run), "--keep", "step > 5", "--yes"])
    main(["prune", str(run), "--keep", "step > 8", "--yes"])
    marks = [rollout.marks.get("pruned") for rollout in open_run(run).rollouts()]
    assert [marks.count(f"not kept by step > {number}") for number in (5, 8)] == [20, 12]
    assert main(["prune", str(run), "--keep", "step > 8", "--yes"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("nothing to remove: ")


def test_what_pruning_freed_is_said(tmp_path, capsys):
    for length, said in ((1, "too short to free any space"), (5_000, " kB freed")):
        folder = tmp_path / str(length)
        with RolloutRecorder(dir=folder, run_id="mine") as recorder:
            for step in (1, 2):
                text = "".join(random.choices(string.printable, k=length))
                recorder.record(step, [{"prompt": "why?", "completion": text, "reward": 1.0}])
        assert main(["prune", str(folder), "--keep", "step = 2", "--yes"]) == 0
        assert f"{said}); their numbers are still there" in capsys.readouterr().out


def test_pictures_that_nobody_has_anymore_go_with_the_text(tmp_path):
    with RolloutRecorder(dir=tmp_path, run_id="mine") as recorder:
        for step, colour in ((1, "red"), (2, "blue")):
            message = {"role": "user", "content": [{"type": "image", "image": Image.new("RGB", (8, 8), colour)}]}
            recorder.record(step, [{"prompt": [message], "completion": "seen", "reward": 1.0}])
    media = tmp_path / "mine" / "media"
    assert len(list(media.iterdir())) == 2
    assert main(["prune", str(tmp_path / "mine"), "--keep", "step = 2", "--yes"]) == 0
    (left,) = media.iterdir()
    assert open_run(tmp_path).rollouts(step=2)[0].images[0].path == f"media/{left.name}"


def test_what_was_pruned_makes_room_here_too_once_it_is_in_the_mirror(tmp_path):
    options = {"run_id": "mine", "mirror": str(tmp_path / "there"), "config": {"mirror": {"seal_seconds": 1e-9}}}
    run = recorded(tmp_path / "here", steps=(1, 2, 3), **options)
    assert main(["prune", str(run), "--keep", "step = 2", "--yes"]) == 0
    options["config"]["mirror"]["keep_local"] = 0
    recorded(tmp_path / "here", steps=(4,), **options)
    left = [path.name for path in run.glob("data/train/*")]
    assert sorted(left) == ["001-00000-000002.parquet", "002-00000-000000.parquet"]  # the next ones follow these
    assert sorted(answers(tmp_path / "there")) == [f"answer {step}.{n}" for step in range(1, 5) for n in range(4)]


def test_the_mirror_keeps_what_is_pruned_here(tmp_path):
    there = tmp_path / "there"
    run = recorded(tmp_path / "here", mirror=str(there), run_id="mine")
    whole = answers(there / "mine")
    main(["prune", str(run), "--keep", "step = 2", "--yes"])
    recorded(tmp_path / "here", steps=(3,), mirror=str(there), run_id="mine")
    assert answers(there / "mine")[:8] == whole
    assert [path.name for path in there.iterdir()] == ["mine"]


def test_an_answer_about_texts_leaves_out_what_was_pruned_and_says_so(run, tmp_path, capsys):
    other = recorded(tmp_path / "other", steps=range(1, 11), run_id="mine")
    assert main(["prune", str(run), "--keep", "step = 5", "--yes"]) == 0
    capsys.readouterr()
    assert main(["diff", str(other), str(run)]) == 0
    out, err = capsys.readouterr()
    assert "1 prompt in both (10 and 1)" in out or "1 prompts in both (10 and 1)" in out
    assert (line := f"{run}: 36 rollouts without text, since it was pruned, ") + "cannot be compared" in err
    assert main(["show", str(run), "--search", "answer"]) == 0
    assert line + "cannot be searched" in capsys.readouterr().err
