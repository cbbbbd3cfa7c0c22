"""A stand-in for `vllm serve`: scripted completions over HTTP, and a teacher that agrees with every token."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count


class StandIn:
    """Answers with the script's texts one after the other, round and round."""

    def __init__(self, tokenizer, script):
        self._tokenizer, self._script = tokenizer, script
        self._numbers, self._lock = count(), threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def answer(self, request):
        if request.get("prompt_logprobs") is not None:
            scores = [{str(token): {"logprob": -0.5, "rank": 1}} for token in request["prompt"][1:]]
            return {"choices": [{"prompt_logprobs": [None, *scores], "token_ids": [0]}]}
        with self._lock:
            text = self._script[next(self._numbers) % len(self._script)]
            ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = [*ids, self._tokenizer.eos_token_id][: request["max_tokens"]]
        return {"choices": [{"token_ids": ids, "text": text, "logprobs": {"token_logprobs": [-0.5] * len(ids)}}]}

    def close(self):
        self._http.shutdown()
        self._http.server_close()


def _handler(server):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def do_GET(self):
            self._send({"data": [{"id": "teacher", "max_model_len": 4096}]})

        def do_POST(self):
            self._send(server.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"])))))

        def _send(self, answer):
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
