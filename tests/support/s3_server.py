"""moto's S3 over HTTP, in a process of its own, so that it can be away, be slow to allow, or refuse."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress

from served import Asked, served

KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "a-secret-of-the-test", "AWS_REGION": "us-east-1"}


class S3:
    def __init__(self):
        self._place = socket.socket()
        """Bound to the server's port, so that nobody else is given it while the server is away."""
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", 0))
        self._process = None

    @property
    def port(self):
        return self._place.getsockname()[1]

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        with tempfile.TemporaryFile() as told:
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=told)
            until = time.monotonic() + 240
            while not _runs(told):
                assert self._process.poll() is None, "moto's server does not start"
                assert time.monotonic() < until, "moto's server does not start"
                time.sleep(0.05)

    def stop(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self):
        self.stop()
        self._place.close()

    def filesystem(self):
        from pyarrow import fs

        return fs.S3FileSystem(
            access_key=KEYS["AWS_ACCESS_KEY_ID"],
            secret_key=KEYS["AWS_SECRET_ACCESS_KEY"],
            endpoint_override=self.url,
            region="us-east-1",
            allow_bucket_creation=True,
            connect_timeout=600,
            request_timeout=600,
        )

    def make_bucket(self, name):
        self.filesystem().create_dir(name)

    def names(self, folder):
        """The objects below a folder, with their sizes."""
        from pyarrow import fs

        found = self.filesystem().get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
        return {info.path.removeprefix(f"{folder}/"): info.size for info in found if info.is_file}


def _runs(told):
    """Whether the server said that it runs."""
    told.seek(0)
    return b"Running on http://127.0.0.1:" in told.read()


def use_s3(monkeypatch, url):
    """Clients find a server at this address, which may be slow, and the keys of the tests."""
    monkeypatch.setattr("rollout_plugins.remote.url_places.SECONDS", 120.0)
    monkeypatch.setattr("rollout_plugins.remote.url_places.LIST_SECONDS", 120.0)
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": url, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)


@contextmanager
def s3_server(monkeypatch):
    server = S3()
    server.start()
    use_s3(monkeypatch, server.url)
    try:
        yield server
    finally:
        server.close()


class _Front(Asked):
    """Hands everything on to the real server, unless it has a fault."""

    def handle_any(self):
        body, fault = self.body(), self.server.fault
        if fault == "hangs" or (fault == "hangs in mid-upload" and "partNumber=2" in self.path):
            self.server.hung = True
            self.server.released.wait()
            self.close_connection = True
        elif isinstance(fault, tuple) and all(part in self.path for part in fault[2:]):
            status, code = fault[:2]
            self.send(f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode(), status)
        else:
            with suppress(OSError):  # the client was killed
                self._hand_on(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

    def _hand_on(self, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=600)
        ours = ("transfer-encoding", "expect", "content-length")
        kept = {name: value for name, value in self.headers.items() if name.lower() not in ours}
        connection.request(self.command, self.path, body, {**kept, "Content-Length": str(len(body))})
        answer = connection.getresponse()
        self.send(answer.read(), answer.status, {n: v for n, v in answer.getheaders() if n != "Connection"})
        connection.close()


@contextmanager
def faulty(s3, monkeypatch):
    """The way to the server for clients, whose `fault` is None, "hangs", or a status and a code of S3's.

    After the code may stand what must be in the path of a request that fails.
    """
    with served(_Front, behind=s3.port, fault=None, hung=False, released=threading.Event()) as front:
        monkeypatch.setenv("AWS_ENDPOINT_URL", front.url)
        try:
            yield front
        finally:
            monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
            front.released.set()
