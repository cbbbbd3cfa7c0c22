"""A Hugging Face Hub that takes every upload and notes which files were in it."""

from __future__ import annotations

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import huggingface_hub


class _Hub(BaseHTTPRequestHandler):
    def do_GET(self):
        self._answer({"name": "me", "type": "user", "id": "me/out", "sha": "0" * 40, "siblings": []})

    def do_POST(self):
        body = self._body()
        if "/preupload/" in self.path:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            self._answer({"files": files})
        elif "/commit/" in self.path:
            entries = [json.loads(line) for line in body.splitlines()]
            self.server.uploads.append([one["value"]["path"] for one in entries if one["key"] != "header"])
            url = f"{self.server.url}/me/out/commit/{'0' * 40}"
            self._answer({"commitUrl": url, "commitOid": "0" * 40, "success": True})
        else:
            self._answer(
                {"url": f"{self.server.url}/me/out", "id": "me/out", "name": "me/out", "errors": [], "warnings": []}
            )

    def _body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, value):
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@contextmanager
def hub(monkeypatch):
    """A list that gets the paths of each commit, from whoever pushes meanwhile."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    server.url, server.uploads = f"http://127.0.0.1:{server.server_port}", []
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("transformers.utils.hub._hf_api", None)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.uploads
    finally:
        server.shutdown()
        server.server_close()
