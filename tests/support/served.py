"""What stand-ins for services have in common: they are asked over HTTP, on a port of their own, and answer."""

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qsl, unquote, urlsplit


class Asked(BaseHTTPRequestHandler):
    """A request. A stand-in has a subclass with a method for each HTTP method, `do_GET` and so on."""

    protocol_version = "HTTP/1.1"

    @property
    def place(self):
        return unquote(urlsplit(self.path).path)

    @property
    def query(self):
        return dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))

    def body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def part_of(self, data):
        """The status and the bytes that a `Range` header asks for."""
        wanted = (self.headers.get("Range") or self.headers.get("x-ms-range") or "").removeprefix("bytes=")
        if not wanted:
            return 200, data
        first, _, last = wanted.partition("-")
        return 206, data[int(first) : int(last) + 1 if last else None]

    def answer(self, value, status=200, headers=None):
        self.send(json.dumps(value).encode(), status, {"Content-Type": "application/json", **(headers or {})})

    def send(self, data, status=200, headers=None):
        self.send_response_only(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_):
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    """However long none is answered, a client is not turned away."""


def serve(handler, **state):
    """A server that is asked from now on, with its `url` and what else requests find in `self.server`."""
    server = _Server(("127.0.0.1", 0), handler)
    server.url = f"http://127.0.0.1:{server.server_port}"
    for name, value in state.items():
        setattr(server, name, value)
    Thread(target=server.serve_forever, daemon=True).start()
    return server


def stop(server):
    server.shutdown()
    server.server_close()


@contextmanager
def served(handler, **state):
    server = serve(handler, **state)
    try:
        yield server
    finally:
        stop(server)
