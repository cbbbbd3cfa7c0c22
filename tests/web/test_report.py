"""What goes into the report: the right rollouts, the numbers of all of them, and no more than a file should hold."""

from __future__ import annotations

import base64
import json
import re
from io import BytesIO

import pytest
from PIL import Image as Pil
from reading import one as made_one
from reading import write
from report_data import data_of
from report_rig import TOOLS, Boards, empty, fill, hostile, picture, resumed, seen
from rollout_hookspecs import Image

from rollout_plugins import hookimpl, open_run
from rollout_plugins.errors import RunError, SetupError
from rollout_plugins.report import write_report
from rollout_plugins.testing import make_rollout
from rollout_plugins.web import course
from rollout_plugins.web import data as page_values


def report(folder, path=None, **options):
    path = path or folder / "report.html"
    made = write_report(open_run(folder), path, **options)
    data = data_of(path)
    assert made.rollouts == len(data["rollouts"])
    assert made.bytes == path.stat().st_size
    return data


def words(data, rollout):
    return [
        data["texts"][part] for turn in rollout["turns"] for part in turn.get("parts", ()) if isinstance(part, int)
    ]


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop")
    fill(folder, range(1, 13))
    return folder


def test_a_run_with_its_facts_numbers_and_conversations(shop):
    data = report(shop)
    run, stored = data["run"], open_run(shop)
    assert (run["id"], run["model"], run["trainer"]) == ("r1", "Qwen/Qwen3-0.6B", "GRPOTrainer")
    assert run["rewards"] == [["correct", 0.8], ["brief", 0.2]]
    assert [tool["name"] for tool in run["tools"]] == [tool["function"]["name"] for tool in TOOLS]
    assert run["settings"]["temperature"] == 0.9
    assert data["total"] == data["matched"] == len(data["rollouts"]) == len(stored)
    assert data["steps"]["train"]["step"] == list(range(1, 13))
    assert data["steps"]["eval"]["step"] == [4, 8, 12]
    means = {row["step"]: row["reward"] for row in stored.stats() if row["split"] == "train"}
    assert data["steps"]["train"]["reward"] == pytest.approx(list(means.values()), rel=1e-5)
    rollout = stored.get(data["rollouts"][0]["id"])
    shown = data["rollouts"][0]
    assert (shown["reward"], shown["advantage"], shown["finish"]) == (
        rollout.reward,
        rollout.advantage,
        rollout.finish,
    )
    assert shown["rewards"] == rollout.rewards
    assert words(data, shown)[:2] == [message["content"] for message in rollout.prompt]


def test_a_tool_call_stands_with_its_result_error_and_seconds(shop):
    data = report(shop)
    calls = [call for one in data["rollouts"] for turn in one["turns"] for call in turn.get("calls", ())]
    failed = next(call for call in calls if call["status"] == "error")
    assert failed["name"] == "multiply"
    assert data["texts"][failed["arguments"]].startswith("a = ")
    assert data["texts"][failed["error"]].startswith("TypeError")
    assert "missing 1 required" in data["texts"][failed["result"][0]]
    assert failed["seconds"] == 0.002
    assert not any(turn["role"] == "tool" for one in data["rollouts"] for turn in one["turns"])


def test_thoughts_in_the_text_are_reasoning(tmp_path):
    write(tmp_path, [make_rollout(completion="<think>first\nthis</think>The answer is 42.")])
    data = report(tmp_path)
    (turn,) = [turn for turn in data["rollouts"][0]["turns"] if turn["role"] == "assistant"]
    assert data["texts"][turn["reasoning"]] == "<think>first\nthis</think>"
    assert [data["texts"][part] for part in turn["parts"]] == ["The answer is 42."]


def test_more_than_the_limit_are_whole_groups_spread_over_the_steps(shop):
    data = report(shop, limit=80)
    assert 60 <= len(data["rollouts"]) <= 80
    assert data["matched"] == data["total"] == 216
    train = [one for one in data["rollouts"] if one["split"] == "train"]
    assert {1, 12} <= {one["step"] for one in train}
    assert {one["split"] for one in data["rollouts"]} == {"train", "eval"}
    groups = {}
    for one in data["rollouts"]:
        groups.setdefault((one["split"], one["generation"], one["group"]), []).append(one)
    assert all(len(group) == group[0]["group_size"] for group in groups.values())
    assert sum(data["steps"]["train"]["rollouts"]) == 192, "the charts are of all rollouts"


def test_prompts_that_come_back_are_chosen_first(shop):
    data = report(shop, limit=120, split="train")
    steps = {}
    for one in data["rollouts"]:
        steps.setdefault(one["prompt"], set()).add(one["step"])
    assert max(map(len, steps.values())) >= 3


def test_with_an_order_the_first_of_it(shop):
    data = report(shop, limit=5, order="-reward")
    best = [rollout.id for rollout in open_run(shop).rollouts(order="-reward", limit=5)]
    assert [one["id"] for one in data["rollouts"]] == best


def test_filters_choose_rollouts_and_leave_the_charts(shop):
    data = report(shop, where="reward < 0.5", step="1-3", limit=20)
    assert data["filters"] == {"where": "reward < 0.5", "step": "1-3"}
    assert 0 < len(data["rollouts"]) <= 20
    assert all(one["reward"] < 0.5 and one["step"] <= 3 for one in data["rollouts"])
    assert data["matched"] == open_run(shop).count(where="reward < 0.5", step="1-3")
    assert len(data["steps"]["train"]["step"]) == 12


def test_a_filter_may_end_with_a_comment(shop):
    data = report(shop, where="reward < 0.5 -- the bad ones", limit=20)
    assert data["matched"] == open_run(shop).count(where="reward < 0.5")


def test_a_filter_that_finds_nothing_and_an_empty_run(shop, tmp_path):
    assert report(shop, where="reward > 99")["rollouts"] == []
    empty(tmp_path)
    data = report(tmp_path)
    assert (data["total"], data["rollouts"], data["steps"]) == (0, [], {})
    with pytest.raises(RunError, match="limit=-1"):
        report(shop, limit=-1)


def test_a_resumed_run_shows_what_counts_and_both_attempts(tmp_path):
    resumed(tmp_path)
    data = report(tmp_path)
    assert [attempt.get("resumed_from") for attempt in data["run"]["attempts"]] == [None, 6]
    assert {(one["step"], one["attempt"]) for one in data["rollouts"] if one["step"] in {6, 7}} == {(6, 1), (7, 2)}
    assert len(data["rollouts"]) == len(open_run(tmp_path))


def test_damaged_files_are_named_and_the_rest_is_there(tmp_path):
    fill(tmp_path, range(1, 3))
    broken = tmp_path / "r1" / "data" / "train" / "0001-0000-9999.parquet"
    broken.write_bytes(b"PAR1 no more")
    data = report(tmp_path)
    assert list(data["damaged"]) == [f"data/train/{broken.name}"]
    assert data["rollouts"]


def test_images_stand_once_and_decode(tmp_path):
    seen(tmp_path, count=3)
    data = report(tmp_path)
    shown = [
        part["image"]
        for one in data["rollouts"]
        for turn in one["turns"]
        for part in turn.get("parts", ())
        if isinstance(part, dict)
    ]
    assert len(shown) == 12
    assert len(data["images"]) == 6, "three of prompts and three of tools"
    assert len({one["prompt"] for one in data["rollouts"]}) == 3, "another image is another prompt"
    kind, _, packed = data["images"][shown[0]]["data"].partition(";base64,")
    assert kind == "data:image/png"
    assert Pil.open(BytesIO(base64.b64decode(packed))).size == picture(1).size


def test_many_large_images_fit_and_say_that_they_are_smaller(tmp_path, monkeypatch):
    monkeypatch.setattr("rollout_plugins.web.pools.AS_IT_IS", 1000)
    seen(tmp_path, count=4, side=1200)
    data = report(tmp_path)
    assert data["images_spared"] == 8
    assert all(image["reduced"] and image["width"] == 2400 for image in data["images"])
    monkeypatch.setattr("rollout_plugins.web.data.Pictures.__init__.__kwdefaults__", {"room": 2000})
    data = report(tmp_path)
    assert sum(len(image.get("data", "")) for image in data["images"]) < 4000
    assert {image["why"] for image in data["images"] if "data" not in image} == {"left out to keep this file small"}


def test_an_image_path_leads_nowhere_outside_the_run(tmp_path):
    secret = tmp_path / "secret.png"
    picture(1).save(secret)
    paths = ("../../secret.png", str(secret), "media/../../../secret.png", "\x00", "media/\ud800.png", "x" * 5000)
    images = tuple(Image(hash=str(at), path=path) for at, path in enumerate(paths))
    write(tmp_path, [make_rollout(images=images)])
    data = report(tmp_path)
    assert len(data["images"]) == len(paths)
    assert not any("data" in image for image in data["images"])


def test_a_thousand_real_rollouts_are_a_few_hundred_kilobytes(tmp_path):
    fill(tmp_path, range(1, 64), evaluate=False)
    data = report(tmp_path, limit=1000)
    assert len(data["rollouts"]) == 1000
    assert (tmp_path / "report.html").stat().st_size < 500_000


def test_too_much_text_is_cut_where_it_is_longest(tmp_path, monkeypatch):
    monkeypatch.setattr("rollout_plugins.web.data.Texts.__init__.__kwdefaults__", {"longest": 50_000, "most": 20_000})
    long = [make_rollout(id=str(at), index=at, completion=f"{at} " * 6000) for at in range(4)]
    write(tmp_path, [*long, make_rollout(id="short", index=9, completion="a short one")])
    data = report(tmp_path)
    assert data["texts_cut"] == 4
    assert sum(map(len, data["texts"])) < 21_000
    assert "a short one" in data["texts"]
    assert sum(" characters …" in text for text in data["texts"]) == 4


def test_what_is_shown_hides_nothing_and_the_element_cannot_end(tmp_path):
    nasty = "</script><!--<script>alert(1)</script> \u202e\x1b[2J\u2028 \ud800"
    stored = hostile(
        tmp_path,
        make_rollout(
            id=nasty,
            completion=nasty,
            columns={nasty: nasty},
            rewards={nasty: 1.0},
            prompt=({"role": nasty, "content": nasty},),
        ),
    )
    write_report(stored, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_bytes()
    assert b"alert(1)" not in page
    assert page.count(b"</script>") == 2
    data = data_of(tmp_path / "page.html")
    assert "</script><!--<script>alert(1)</script> \\u202e␛[2J\\u2028 \\ud800" in data["texts"]
    assert not re.search(
        "[\u202a-\u202e\u2066-\u2069\u200b\x00-\x08\x1b\ud800-\udfff]", json.dumps(data, ensure_ascii=False)
    )
    assert len(data["rollouts"]) == len(stored)


def test_run_files_that_somebody_mangled(tmp_path):
    write(tmp_path, [make_rollout()])
    path = tmp_path / "r1" / "run.json"
    odd = {
        "id": 7,
        "world_size": "2",
        "reward_weights": [float("nan"), 1],
        "tools": [3, {"function": 4}],
        "versions": [],
        "attempts": [{"started": float("inf"), "rollouts": [1], "plugin_errors": {"x": "y"}}],
    }
    path.write_text(json.dumps(json.loads(path.read_text()) | odd))
    run = report(tmp_path)["run"]
    assert (run["id"], run["rewards"][0][1], run["attempts"]) == (
        "r1",
        "nan",
        [{"attempt": 1, "rank": 0, "rollouts": 0}],
    )


def test_numbers_json_has_no_word_for_are_spelled(tmp_path):
    write(tmp_path, [make_rollout(id="odd", reward=float("nan"), advantage=float("-inf"), columns={"big": 2**70})])
    (one,) = report(tmp_path)["rollouts"]
    assert (one["reward"], one["advantage"], one["columns"]["big"]) == (
        "nan",
        "-inf",
        {"text": one["columns"]["big"]["text"]},
    )


class Fails:
    @hookimpl
    def show_rollout(self, rollout):
        raise RuntimeError("no board")


def test_panels_of_plugins_and_one_that_fails(shop):
    data = report(shop, limit=8, plugins=[Boards(), Fails()])
    board, moves, failed = data["rollouts"][0]["panels"]
    assert (board["turn"], board["replaces"], data["texts"][board["text"]]) == (0, True, "x o\no x")
    assert moves["table"] == [["move", "score"], ["e4", 0.5]]
    assert data["images"][moves["image"]]["data"].startswith("data:image/png")
    assert "could not show" in data["texts"][failed["text"]]


def test_the_page_lets_nothing_in_and_names_no_folder(shop):
    write_report(open_run(shop), shop / "page.html")
    page = (shop / "page.html").read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert str(shop) not in page
    assert str(shop) not in json.dumps(data_of(shop / "page.html"))


def test_the_same_run_gives_the_same_page(shop, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1.0)
    one, other = shop / "one.html", shop / "other.html"
    write_report(open_run(shop), one)
    write_report(open_run(shop), other)
    assert one.read_bytes() == other.read_bytes()


def test_another_file_is_not_replaced_without_saying_so(shop, tmp_path):
    mine = tmp_path / "report.html"
    mine.write_text("<!doctype html><p>my own notes")
    with pytest.raises(RunError, match=r"is not a report.*force=True"):
        write_report(open_run(shop), mine)
    assert "my own notes" in mine.read_text()
    write_report(open_run(shop), mine, force=True)
    write_report(open_run(shop), mine)
    with pytest.raises(RunError, match="is a folder; name a file"):
        write_report(open_run(shop), tmp_path)
    with pytest.raises(SetupError, match="does not exist; create it"):
        write_report(open_run(shop), tmp_path / "no" / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_charts_of_a_long_run_have_as_many_points_as_they_can_show(tmp_path):
    write(
        tmp_path,
        [make_rollout(id=str(step), step=step, generation=0, reward=float(step), index=step) for step in range(4000)],
    )
    series = report(tmp_path, limit=10)["steps"]["train"]
    assert 1000 < len(series["step"]) <= 1500
    assert sum(series["rollouts"]) == 4000
    assert series["reward"][0] == pytest.approx(1.0)
    assert series["reward_max"][-1] == 3999


def test_rewards_that_are_nan_or_infinite_are_counted_and_stay_gaps(tmp_path):
    values = {(2, 0): float("nan"), (2, 1): float("inf")}
    made = [
        made_one(step, index, reward=(value := values.get((step, index), float(index))), rewards={"correct": value})
        for step in (1, 2, 3)
        for index in range(4)
    ]
    data = report(write(tmp_path, made))
    counts = {"nan": 1, "infinite": 1}
    assert data["run"]["not_finite"] == {"reward": counts, "reward/correct": counts}
    first = data["first"]["findings"][0]
    assert (first["check"], first["rollouts"]) == ("rewards-not-finite", ["r1.1.t2.0.0", "r1.1.t2.0.1"])
    assert data["steps"]["train"]["reward"] == [1.5, "inf", 1.5]


def test_a_point_of_several_steps_weighs_what_was_scored(tmp_path, monkeypatch):
    monkeypatch.setattr(course, "POINTS", 2)
    made = [made_one(1, index, reward=8.0 if index == 0 else None, rewards={}) for index in range(4)]
    made += [made_one(step, index, reward=3.0, rewards={}) for step in (2, 3) for index in range(4)]
    data = report(write(tmp_path, made))
    assert data["step_width"] == 2
    assert data["steps"]["train"]["step"] == [1, 3]
    assert data["steps"]["train"]["reward"] == [4.0, 3.0]
    assert data["steps"]["train"]["rollouts"] == [8, 4]


@pytest.mark.needs(part="learn")
def test_prompts_are_listed_with_what_became_of_them(tmp_path, monkeypatch):
    courses = {"easy": "11", "hard \u202e<script>": "00", "new": "01"}
    made = [
        made_one(
            step, number, group=number, prompt=({"role": "user", "content": name},), reward=float(course[step - 1]),
            rewards={"correct": float(course[step - 1])},
        )
        for step in (1, 2)
        for number, (name, course) in enumerate(courses.items())
    ]  # fmt: skip
    folder = write(tmp_path, made)
    prompts = report(folder)["prompts"]
    assert (prompts["total"], prompts["headline"]) == (3, "a pass is reward >= 1: stuck 1 · learnt 1 · saturated 1")
    assert [(row["band"], row["pass_rate"], row["question"]) for row in prompts["rows"]] == [
        ("stuck", 0.0, "hard \\u202e<script>"), ("learnt", 0.5, "new"), ("saturated", 1.0, "easy"),
    ]  # fmt: skip
    monkeypatch.setattr(page_values, "MAX_PROMPTS", 1)
    prompts = report(folder)["prompts"]
    assert (prompts["total"], len(prompts["rows"])) == (3, 1)
    monkeypatch.setattr(page_values, "MAX_PROMPT_ROLLOUTS", 5)
    assert report(folder)["prompts"] is None
