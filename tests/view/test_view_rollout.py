"""One rollout in the viewer: all that is known of it, its tokens and images, and copies of it."""

import json
import threading
from pathlib import Path

import pytest
from PIL import Image as Pil
from reading import one, write
from rollout_hookspecs import Tokens
from viewer import look

from rollout_plugins.plugins.images.media import MediaStore
from rollout_plugins.view.pages import rollout_actions


def test_a_rollout_shows_all_that_is_known_of_it(run):
    async def scenario(eye):
        await eye.sees("group 0", "#3", "reward 3.5", "advantage -0.5", "correct 8.0", "format —", "answer=42")
        await eye.sees(
            "judge", "score=0.375", "marks", "cap=kept: the best of its group", "find(page=3)  250 ms", "→ found 3"
        )

    look(run, scenario, rollout="r1.1.t5.0.3")


def test_turns_fold_by_role_and_one_by_one(run):
    async def scenario(eye):
        await eye.sees("answer=42")
        await eye.press("j", "j", "enter")
        await eye.sees("answer: 42")
        await eye.press("space")
        await eye.sees("answer=42")
        await eye.press("6")
        await eye.sees("answer: 42", "score: 0.0")
        await eye.press("6")
        await eye.sees("answer=42")

    look(run, scenario, rollout="r1.1.t1.0.0")


def test_the_next_rollout_is_a_key_away_and_the_list_follows(run):
    async def scenario(eye):
        await eye.sees("0.1")
        await eye.press("enter")
        await eye.sees("rollout 1 of 8")
        await eye.press("l", "right")
        await eye.sees("rollout 3 of 8", "reward 2.1")
        await eye.press("h")
        await eye.sees("rollout 2 of 8")
        await eye.press("q")
        await eye.sees("8 rollouts")
        assert next(line for line in eye.lines if line.startswith("▌")).split()[1:3] == ["0", "1"]

    look(run, scenario, filters={"step": 1})


def test_text_is_found_in_a_rollout(run):
    async def scenario(eye):
        await eye.sees("Let me look.")
        await eye.press("slash")
        await eye.type("nowhere")
        await eye.press("enter")
        await eye.sees("no match in this rollout", "nowhere")
        await eye.press("ctrl+u")
        await eye.type("DAY")
        await eye.press("enter")
        await eye.sees("1 of 1 with “DAY”")
        await eye.press("slash", "ctrl+u")
        await eye.type("e")
        await eye.press("enter", "n", "n", "N")
        await eye.sees("with “e”")

    look(run, scenario, rollout="r1.1.t1.0.0")


def test_copy_and_export_say_where_it_went(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def scenario(eye):
        await eye.sees("Let me look.")
        await eye.press("e")
        await eye.sees("wrote")
        assert json.loads((tmp_path / "r1.1.t1.0.0.json").read_text())["reward"] == 0.1
        await eye.press("e", "E")
        await eye.until((tmp_path / "r1.1.t1.0.0.md").exists)
        assert (tmp_path / "r1.1.t1.0.0-2.json").exists()
        assert "## assistant" in (tmp_path / "r1.1.t1.0.0.md").read_text()
        await eye.press("Y")
        await eye.until(lambda: "It is rainy on day 1." in eye.app.clipboard)
        await eye.press("G", "y")
        await eye.until(lambda: eye.app.clipboard == "It is rainy on day 1.")

    look(run, scenario, rollout="r1.1.t1.0.0", size=(120, 30))


def test_each_of_several_exports_is_written_and_told(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    go_on, save = threading.Event(), rollout_actions.save

    def slow(*what, **how):
        assert go_on.wait(600)
        return save(*what, **how)

    monkeypatch.setattr(rollout_actions, "save", slow)

    async def scenario(eye):
        await eye.sees("Let me look.")
        await eye.pilot.press("e", "E")
        go_on.set()
        await eye.rests()
        assert {Path(note.message).suffix for note in eye.app._notifications} == {".json", ".md"}
        assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".md"}

    look(run, scenario, rollout="r1.1.t1.0.0")


def test_tokens_are_coloured_by_what_was_kept_of_them(tmp_path):
    kept = Tokens(prompt=[7], completion=[1, 2, 3], mask=[1, 1, 0], logprobs=[-0.01, -1.0, -9.0])
    path = write(tmp_path, [one(1, 0, tokens=kept), one(1, 1)])

    def style(eye, token):
        strips = eye.app.screen._compositor.render_strips()
        return next(segment.style for strip in strips for segment in strip if segment.text == f"{token} ")

    async def scenario(eye):
        await eye.sees("Answer 0")
        await eye.press("T")
        await eye.sees("3 tokens by log-prob", "mean -3.337", "least -9.0", "only ids", "1 2 3")
        assert style(eye, 1).color != style(eye, 2).color != style(eye, 3).color
        await eye.press("T")
        await eye.sees("3 tokens by mask", "not trained")
        assert style(eye, 1).color == style(eye, 2).color != style(eye, 3).color
        await eye.press("T")
        await eye.sees("Answer 0")

    look(path, scenario, rollout="r1.1.t1.0.0")

    async def without(eye):
        await eye.sees("Answer 1")
        await eye.press("T")
        await eye.sees("recorded without tokens")

    look(path, without, rollout="r1.1.t1.0.1", size=(120, 30))


def test_ids_become_text_where_the_model_has_a_tokenizer(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"hello": 0, "world": 1, "?": 2}, unk_token="?"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    path = write(tmp_path, [one(1, 0, tokens=Tokens(completion=[1, 0, 99]))], model=str(tmp_path))

    async def scenario(eye):
        await eye.sees("Answer 0")
        await eye.press("T")
        await eye.sees("3 tokens by ids", "worldhello<99>")

    look(path, scenario, rollout="r1.1.t1.0.0")


def test_an_image_is_drawn_and_opened(tmp_path, monkeypatch):
    folder = tmp_path / "r1"
    red = MediaStore(folder).put(Pil.new("RGB", (30, 20), "red"), uri="file:///data/red.png")
    asked = {"role": "user", "content": [{"type": "image", "image": red}, {"type": "text", "text": "what is it?"}]}
    write(tmp_path, [one(1, 0, prompt=(asked,), images=(red,))])
    opened = []
    monkeypatch.setattr("rollout_plugins.view.pages.rollout.shutil.which", lambda name: name)
    monkeypatch.setattr(
        "rollout_plugins.view.pages.rollout.subprocess.Popen", lambda command, **_: opened.append(command)
    )

    async def scenario(eye):
        await eye.sees("[IMAGE red.png 30x20]", "what is it?", "▀▀▀▀")
        strips = eye.app.screen._compositor.render_strips()
        drawn = {segment.style.color.triplet for strip in strips for segment in strip if "▀" in segment.text}
        assert (255, 0, 0) in drawn
        await eye.press("o")
        await eye.until(lambda: opened)
        assert opened[0][-1] == str(folder / red.path)

    look(folder, scenario, rollout="r1.1.t1.0.0", size=(80, 40))
