"""GRPO with a `rollout_func`: turns that it glued into one list of token ids are told apart again."""

import pytest
import trl
from datasets import Dataset
from episodes import END, TOLD, between, heard, played, said, since_1
from packaging.version import Version
from rig import dataset, make, tiny_model, tokenizer
from transformers import AutoTokenizer

from rollout_plugins import RolloutPluginCallback, open_run

if Version(trl.__version__) < Version("0.26"):
    pytest.skip("env_mask came with TRL 0.26", allow_module_level=True)


def trained(folder, episodes, *, options=None, masked=True, fields=None, **more):
    play = played(episodes, masked=masked, **(fields or {}))
    trainer = make(folder, rollout_func=play, max_completion_length=200, **more)
    trainer.add_callback(RolloutPluginCallback(**(options or {})))
    trainer.train()
    run = open_run(folder / "out")
    assert run.health.drops == {}
    return trainer, list(run.rollouts(tokens=True)), run


DOOR, LAMP = "I open the door.", "I light a lamp."
TWO_TOOLS = "<tool_response>\nfour\n</tool_response>\n<tool_response>\n5\n\n</tool_response>"
SHAPES = {
    "messages in the chat template": (
        [(DOOR + END, 1), (between("The room is dark."), 0), (LAMP + END, 1)],
        [said(DOOR), heard("The room is dark."), said(LAMP)],
    ),
    "the end of a turn belongs to the template": (
        [(DOOR, 1), (END + between("The room is dark."), 0), (LAMP, 1), (END, 0)],
        [said(DOOR), heard("The room is dark."), said(LAMP)],
    ),
    "a model that is not to think": (
        [(DOOR + END, 1), (between("Go on.") + "<think>\n\n</think>\n\n", 0), (LAMP + END, 1)],
        [said(DOOR), heard("Go on."), said(LAMP)],
    ),
    "results of two tools": (
        [(DOOR + END, 1), (between(TWO_TOOLS), 0), (LAMP + END, 1)],
        [said(DOOR), heard("four", "tool"), heard("5\n", "tool"), said(LAMP)],
    ),
    "two messages between": (
        [(DOOR + END, 1), (between(f"One.{END}\n<|im_start|>system\nTwo."), 0), (LAMP + END, 1)],
        [said(DOOR), heard("One."), heard("Two.", "system"), said(LAMP)],
    ),
    "two turns of the model": (
        [(DOOR + END, 1), ("\n<|im_start|>assistant\n", 0), (LAMP + END, 1)],
        [said(DOOR), said(LAMP)],
    ),
    "plain text of an environment, as OpenEnv's games have it": (
        [("\n[crane]" + END + "\n", 1), ("C R A N E\nX G X X Y\n", 0), ("\n[round]" + END + "\n", 1)],
        [said("\n[crane]\n"), heard("C R A N E\nX G X X Y\n"), said("\n[round]\n")],
    ),
    "the environment has the last word": (
        [(DOOR + END, 1), (between("You win."), 0)],
        [said(DOOR), heard("You win.")],
    ),
}  # fmt: skip


def test_arguments_that_no_chat_template_takes_cost_no_rollout(tmp_path):
    episode, expected = SHAPES["two turns of the model"]
    _, rollouts, _ = trained(tmp_path, [episode] * 4, chat_template_kwargs={"self": 1, "how": 2, "after": 3})
    assert [[r.completion[0], r.completion[-1]] for r in rollouts] == [expected] * 4


@pytest.mark.parametrize("kind", ["messages", "text"])
def test_the_turns_are_told_apart_by_the_mask(tmp_path, kind):
    rows = {"rows": Dataset.from_dict({"prompt": ["hello"] * 8})} if kind == "text" else {}
    episodes = [pieces for pieces, _ in SHAPES.values()]
    trainer, stored, _ = trained(tmp_path, episodes, options={"tokens": True}, max_steps=2, **rows)
    assert len(stored) == len(SHAPES)
    for rollout, (shape, (pieces, wanted)) in zip(stored, SHAPES.items(), strict=True):
        assert (shape, list(rollout.completion)) == (shape, wanted)
        assert not rollout.completion_is_text
        assert rollout.marks == TOLD
        wrote = [
            len(trainer.processing_class(text, add_special_tokens=False)["input_ids"]) for text, by in pieces if by
        ]
        assert rollout.completion_tokens == sum(rollout.tokens.mask) == sum(wrote)
        assert len(rollout.tokens.mask) == len(rollout.tokens.completion) == len(rollout.tokens.logprobs)
    assert [r.advantage for r in stored] == pytest.approx([row["advantage"] for row in trainer.truth])


def test_without_a_mask_it_is_one_turn_and_says_so(tmp_path):
    pieces, _ = SHAPES["messages in the chat template"]
    trainer, stored, _ = trained(tmp_path, [pieces], options={"tokens": True}, masked=False)
    assert [list(r.completion) for r in stored] == [row["completion"] for row in trainer.truth]
    assert [r.prompt_tokens for r in stored] == [len(r.tokens.prompt) for r in stored]
    assert [r.completion_tokens for r in stored] == [len(r.tokens.completion) for r in stored]
    assert {r.marks["turns"] for r in stored} == {"not separated: rollout_func returned no env_mask"}


def test_what_the_model_wrote_alone_is_the_trainers_own_message(tmp_path):
    trainer, stored, _ = trained(tmp_path, [[(DOOR + END, 1)], [(END, 0)]])
    assert [list(r.completion) for r in stored] == [row["completion"] for row in trainer.truth]
    assert [r.completion[0]["content"] for r in stored] == [DOOR, ""] * 2
    assert [r.marks for r in stored] == [{}] * 4


def test_ids_that_make_no_whole_characters_are_marked_and_cost_nothing_else(tmp_path):
    known = AutoTokenizer.from_pretrained(tiny_model(tmp_path))
    bird, room = (known(text, add_special_tokens=False)["input_ids"] for text in ("the bird 🐦", " The room"))
    pieces = [(bird[:-2], 1), (bird[-2:] + room, 0), (LAMP + END, 1)]
    _, stored, _ = trained(
        tmp_path, [pieces, SHAPES["the environment has the last word"][0]], options={"tokens": True}
    )
    assert [message["content"] for message in stored[0].completion] == ["the bird �", "�� The room", LAMP]
    assert "are not complete characters" in stored[0].marks["turns"]
    assert stored[0].tokens.completion[: len(bird)] == bird
    assert stored[1].marks == TOLD


@since_1
def test_fields_of_the_function_are_extra_and_the_datasets_columns_stay_its_own(tmp_path):
    def rewards(completions, env_reward, log_extra, **kwargs):
        log_extra("kind", ["logged"] * len(completions))
        return env_reward

    fields = {
        "env_reward": lambda n: [i / 4 for i in range(n)],
        "moves": lambda n: [["up"] * i for i in range(n)],
        "level": lambda n: ["of the function"] * n,
        "kind": lambda n: ["given"] * n,
        "server": lambda n: "local",
        "more": lambda n: [7] * (n + 1),
    }
    pieces, _ = SHAPES["messages in the chat template"]
    _, stored, _ = trained(tmp_path, [pieces], fields=fields, rows=dataset(level=list(range(8))), rewards=[rewards])
    assert [r.rewards for r in stored] == [{"rewards": i / 4} for i in range(4)]
    assert [r.extra["env_reward"] for r in stored] == [0.0, 0.25, 0.5, 0.75]
    assert [r.extra["moves"] for r in stored] == [["up"] * i for i in range(4)]
    assert {r.extra["level"] for r in stored} == {"of the function"}
    assert [f"hello {r.columns['level']}" for r in stored] == [r.prompt[0]["content"] for r in stored]
    assert {(r.extra["server"], r.extra["kind"], r.extra["rollout_func.kind"]) for r in stored} == {
        ("local", "logged", "given")
    }
    assert [r.extra.get("more") for r in stored] == [[7] * 5, None, None, None]
    assert {tuple(r.columns) for r in stored} == {("level",)}


@since_1
def test_a_tokenizer_that_reads_tool_calls_reads_them_in_each_turn(tmp_path):
    templates = pytest.importorskip("trl.chat_template_utils")
    reading = templates.add_response_schema(tokenizer())
    asking = '<tool_call>\n{"name": "look", "arguments": {"at": "door"}}\n</tool_call>' + END
    pieces = [(asking, 1), (between("<tool_response>\nlocked\n</tool_response>"), 0), (LAMP + END, 1)]
    _, stored, _ = trained(tmp_path, [pieces], processing_class=reading)
    for rollout in stored:
        asked, answer, last = rollout.completion
        assert asked["tool_calls"][0]["function"] == {"name": "look", "arguments": {"at": "door"}}
        assert (answer, last["content"]) == (heard("locked", "tool"), LAMP)
        (made,) = rollout.tool_calls
        assert (made.name, made.arguments, made.result) == ("look", {"at": "door"}, "locked")
