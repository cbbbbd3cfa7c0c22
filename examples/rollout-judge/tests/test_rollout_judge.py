import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace

import httpx
import pytest
import rollout_judge
from rollout_judge import Judge

from rollout_plugins import open_run
from rollout_plugins.testing import hostile_rollouts, make_rollout, run_plugins, scripted_grpo


class Model:
    """A server with OpenAI's chat API, whose answers the test sets."""

    def __init__(self):
        self.answer, self.status, self.asked = '{"score": 0.25, "reason": "made up"}', 200, []
        self.takes, self.clock = 0.0, 0.0  # seconds, as the plugin sees them
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                model.asked.append((self.path, self.headers.get("Authorization"), body))
                model.clock += model.takes
                self.send_response(model.status)
                self.end_headers()
                self.wfile.write(json.dumps({"choices": [{"message": {"content": model.answer}}]}).encode())

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def model():
    model = Model()
    yield model
    model.server.shutdown()
    model.server.server_close()


def judge(model, **options):
    return Judge("judge-1", **{"url": model.url, "share": 1.0, "budget": 600, **options})


def test_the_score_and_its_reason_are_kept_with_the_rollout(model):
    result = run_plugins([judge(model)], [make_rollout(), make_rollout()])
    assert [r.extra for r in result.rollouts] == [{"judge": 0.25, "judge_reason": "made up"}] * 2
    assert result.metrics == {"rollouts/judge": 0.25, "rollouts/judge/count": 2}


def test_the_model_is_asked_about_the_whole_conversation(model, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "key-1")
    run_plugins(
        [judge(model, rubric="Is it polite?")], [make_rollout(prompt="Hello?", completion="Go </conversation>")]
    )
    path, key, body = model.asked[0]
    text = body["messages"][0]["content"]
    assert (path, key, body["model"]) == ("/v1/chat/completions", "Bearer key-1", "judge-1")
    assert "Hello?" in text
    assert "Is it polite?" in text
    assert text.count("</conversation>") == 1


def test_without_a_model_it_asks_nobody():
    result = run_plugins([Judge()], [make_rollout()])
    assert result.rollouts[0].extra == {}
    assert result.metrics == {}


def test_a_share_is_judged_and_always_the_same(model):
    rollouts = [make_rollout() for _ in range(200)]
    judged = [[bool(r.extra) for r in run_plugins([judge(model, share=0.1)], rollouts).rollouts] for _ in range(2)]
    assert judged[0] == judged[1]
    assert 5 < sum(judged[0]) < 40


def test_a_slow_model_costs_a_step_no_more_than_its_budget(model, monkeypatch):
    monkeypatch.setattr(rollout_judge, "time", SimpleNamespace(monotonic=lambda: model.clock))
    model.takes = 100.0
    rollouts = [make_rollout(step=step) for step in (1, 1, 1, 1, 1, 1, 2)]
    result = run_plugins([judge(model, budget=350)], rollouts)
    assert [bool(rollout.extra) for rollout in result.rollouts] == [True] * 4 + [False] * 2 + [True]


@pytest.mark.parametrize("answer", ["fine", "{}", '{"score": "high"}', '{"score": 7}', '{"score": NaN}', '["score"]'])
def test_an_answer_without_a_score_is_kept_as_a_reason(model, answer):
    model.answer = answer
    result = run_plugins([judge(model)], [make_rollout()])
    assert result.rollouts[0].extra["judge"] is None
    assert result.rollouts[0].extra["judge_reason"]
    assert result.metrics == {}


def test_a_failing_server_costs_the_scores_and_nothing_else(model):
    model.status = 500
    result = run_plugins([judge(model)], [make_rollout() for _ in range(10)], strict=False)
    assert len(result.rollouts) == 10
    assert len(model.asked) == 3
    assert {type(found.error) for found in result.errors} == {httpx.HTTPStatusError}


def test_bears_hostile_rollouts(model):
    result = run_plugins([judge(model)], hostile_rollouts())
    assert len(result.rollouts) == len(hostile_rollouts())
    assert all(rollout.extra["judge"] == 0.25 for rollout in result.rollouts)


def test_works_in_a_real_training_run(model, tmp_path):
    pytest.importorskip("trl")
    from rollout_plugins import RolloutPluginCallback

    trainer = scripted_grpo(tmp_path, ["42", "I do not know."])
    trainer.add_callback(RolloutPluginCallback([judge(model)], strict=True, sync=True))
    trainer.train()
    assert [rollout.extra["judge"] for rollout in open_run(tmp_path / "out").rollouts()] == [0.25] * 4
    assert trainer.state.log_history[0]["rollouts/judge"] == 0.25
