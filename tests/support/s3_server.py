"""moto's S3 over HTTP, in a process of its own, so that it can be away, be slow to allow, or refuse."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "a-secret-of-the-test", "AWS_REGION": "us-east-1"}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class S3:
    def __init__(self, port):
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._process = None

    def start(self):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with suppress(OSError):
                urllib.request.urlopen(f"{self.url}/moto-api/", timeout=1)
                return
            time.sleep(0.1)
        raise RuntimeError("moto's server does not start")

    def stop(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def filesystem(self):
        from pyarrow import fs

        return fs.S3FileSystem(
            access_key=KEYS["AWS_ACCESS_KEY_ID"],
            secret_key=KEYS["AWS_SECRET_ACCESS_KEY"],
            endpoint_override=self.url,
            region="us-east-1",
            allow_bucket_creation=True,
        )

    def make_bucket(self, name):
        self.filesystem().create_dir(name)

    def names(self, folder):
        """The objects below a folder, with their sizes."""
        from pyarrow import fs

        found = self.filesystem().get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
        return {info.path.removeprefix(f"{folder}/"): info.size for info in found if info.is_file}


@contextmanager
def s3_server(monkeypatch):
    server = S3(free_port())
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": server.url, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class _Front(BaseHTTPRequestHandler):
    """Hands everything on to the real server, unless it has a fault."""

    protocol_version = "HTTP/1.1"

    def handle_any(self):
        body = self._body()
        fault = self.server.fault
        if fault == "hangs" or (fault == "hangs in mid-upload" and "partNumber=2" in self.path):
            self.server.hung = True
            self.server.released.wait(120)
            self.close_connection = True
        elif isinstance(fault, tuple) and all(part in self.path for part in fault[2:]):
            status, code = fault[:2]
            self._answer(status, [], f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())
        else:
            with suppress(OSError):  # the client was killed
                self._hand_on(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

    def _body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _hand_on(self, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=60)
        ours = ("transfer-encoding", "expect", "content-length")
        kept = {name: value for name, value in self.headers.items() if name.lower() not in ours}
        connection.request(self.command, self.path, body, {**kept, "Content-Length": str(len(body))})
        answer = connection.getresponse()
        kept = [(name, value) for name, value in answer.getheaders() if name not in ("Content-Length", "Connection")]
        self._answer(answer.status, kept, answer.read(), answer.getheader("Content-Length"))
        connection.close()

    def _answer(self, status, headers, body, length=None):
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextmanager
def faulty(s3, monkeypatch):
    """The way to the server for clients, whose `fault` is None, "hangs", or a status and a code of S3's.

    After the code may stand what must be in the path of a request that fails.
    """
    front = ThreadingHTTPServer(("127.0.0.1", 0), _Front)
    front.daemon_threads = True
    front.behind, front.fault, front.hung, front.released = s3.port, None, False, threading.Event()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{front.server_port}")
    threading.Thread(target=front.serve_forever, daemon=True).start()
    try:
        yield front
    finally:
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
        front.released.set()
        front.shutdown()
        front.server_close()
