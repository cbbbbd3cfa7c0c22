"""moto's S3 over HTTP, in a process of its own, so that it can be away, be slow to allow, or refuse."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager, suppress

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
