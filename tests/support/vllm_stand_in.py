"""A stand-in for `vllm serve`: scripted completions over HTTP, and a teacher that agrees with every token."""

import json
import threading
from collections import Counter

from served import Asked, serve, stop


class StandIn:
    """Answers each prompt with the script's texts one after the other, round and round."""

    def __init__(self, tokenizer, script):
        self._tokenizer, self._script = tokenizer, script
        self._asked, self._lock = Counter(), threading.Lock()
        self._http = serve(_Asked, stand_in=self)
        self.url = self._http.url

    def answer(self, request):
        if request.get("prompt_logprobs") is not None:
            scores = [{str(token): {"logprob": -0.5, "rank": 1}} for token in request["prompt"][1:]]
            return {"choices": [{"prompt_logprobs": [None, *scores], "token_ids": [0]}]}
        prompt = str(request["prompt"])
        with self._lock:
            text = self._script[self._asked[prompt] % len(self._script)]
            self._asked[prompt] += 1
            ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = [*ids, self._tokenizer.eos_token_id][: request["max_tokens"]]
        return {"choices": [{"token_ids": ids, "text": text, "logprobs": {"token_logprobs": [-0.5] * len(ids)}}]}

    def close(self):
        stop(self._http)


class _Asked(Asked):
    def do_GET(self):
        self.answer({"data": [{"id": "teacher", "max_model_len": 4096}]})

    def do_POST(self):
        self.answer(self.server.stand_in.answer(json.loads(self.body())))
