"""`rollouts annotate`."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollout_plugins import open_run

FIRST = "r1.1.t1.0.0"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", f'{{"id": "{FIRST}", "score": 0.5, "ok": true}}\n\n{{"id": "other", "score": 1, "ok": null}}\n'),
        ("a.csv", f"id,score,ok\n{FIRST},0.5,true\nother,1,\n"),
    ],
)
def test_annotate_from_a_file(rollouts, run, tmp_path, name, text):
    (tmp_path / name).write_text(text)
    code, out, err = rollouts("annotate", run.dir, "--producer", "judge", tmp_path / name)
    assert code == 0
    assert "2 rows for 1 rollout; the columns of judge are now judge." in out
    assert f"1 of these ids are not in {run.dir} (yet): 'other'" in err
    run.refresh()
    assert run.get(FIRST).extra == {"judge.score": 0.5, "judge.ok": True}
    shown = json.loads(rollouts("show", run.dir, "--json", "--where", "judge.score > 0.4")[1])
    assert shown["id"] == FIRST


def test_annotating_nothing_that_is_there_is_an_error_and_writes_nothing(rollouts, run, tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(f'{{"id": "x{number}", "score": 1}}\n' for number in range(7)))
    code, out, err = rollouts("annotate", run.dir, "--producer", "judge", tmp_path / "a.jsonl")
    assert (code, out) == (1, "")
    assert "no rollout of" in err
    assert "has any of these ids: 'x0', 'x1', 'x2', 'x3', 'x4' and 2 more; nothing was written" in err
    assert not (run.dir / "annotations").exists()


def test_annotate_from_a_pipe_and_from_parquet(rollouts, run, tmp_path, monkeypatch):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO(f'{{"id": "{FIRST}", "a": 1}}'))
    assert json.loads(rollouts("annotate", run.dir, "--producer", "p", "-", "--json")[1])["unknown_ids"] == 0
    out = tmp_path / "x.parquet"
    rollouts("export", run.dir, "-o", out, "--columns", "id,reward")
    assert rollouts("annotate", run.dir, "--producer", "q", out)[0] == 0
    run.refresh()
    assert run.get(FIRST).extra == {"p.a": 1, "q.reward": 1.0}


@pytest.mark.parametrize("text", ["{", '{"id": 1, "a": 2}', '["x"]'])
def test_a_wrong_line_writes_nothing(rollouts, run, tmp_path, text):
    (tmp_path / "a.jsonl").write_text(f'{{"id": "{FIRST}", "a": 1}}\n{text}\n')
    code, _, err = rollouts("annotate", run.dir, "--producer", "p", tmp_path / "a.jsonl")
    assert (code, err.count("\n")) == (1, 1)
    assert not (run.dir / "annotations").exists()


def test_annotations_from_a_folder_named_like_a_column_are_what_the_file_holds(run, rollouts, tmp_path):
    path = tmp_path / "score=7" / "judged.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"id": [FIRST], "why": ["vague"]}), path)
    code, _, err = rollouts("annotate", run.dir, path, "--producer", "judge")
    assert (code, open_run(run.dir).annotations) == (0, {"judge": ["why"]}), err


def test_a_table_from_a_spreadsheet_or_with_a_whole_book_in_a_cell_is_read(rollouts, run, tmp_path):
    book = "x" * 200_000
    (tmp_path / "a.csv").write_text(f"id,note\n{FIRST},{book}\n", encoding="utf-8-sig")
    assert rollouts("annotate", run.dir, "--producer", "p", tmp_path / "a.csv")[0] == 0
    run.refresh()
    assert run.get(FIRST).extra == {"p.note": book}


@pytest.mark.parametrize(
    ("name", "text"), [("a.csv", "id,note\n{},caf\xe9\n"), ("a.jsonl", '{{"id": "{}", "a": "\xe9"}}')]
)
def test_what_is_not_utf_8_is_an_error_and_writes_nothing(rollouts, run, tmp_path, name, text):
    (tmp_path / name).write_bytes(text.format(FIRST).encode("latin-1"))
    code, _, err = rollouts("annotate", run.dir, "--producer", "p", tmp_path / name)
    assert (code, err.count("\n")) == (1, 1)
    assert "is not text in UTF-8" in err


def test_options_for_a_function_are_refused_with_a_file(rollouts, run, tmp_path):
    (tmp_path / "a.csv").write_text(f"id,note\n{FIRST},1\n")
    code, _, err = rollouts("annotate", run.dir, "--producer", "p", tmp_path / "a.csv", "--columns", "reward")
    assert (code, "--columns and --ray are for --by alone" in err) == (1, True)
