"""A stand-in for the Hugging Face Hub: the few endpoints that the real client asks for to make, fill and read a dataset."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit

import huggingface_hub
from huggingface_hub import constants

SHA = "1" * 40


class _Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        path, body = unquote(urlsplit(self.path).path), self._body()
        repos = self.server.repos
        if path == "/api/repos/create":
            about = json.loads(body)
            name = f"{about.get('organization') or 'me'}/{about['name']}"
            repos.setdefault(name, {"private": about.get("visibility") == "private", "files": {}, "commits": []})
            self._answer({"url": f"{self.server.url}/datasets/{name}", "id": name, "name": name})
        elif match := re.fullmatch(r"/api/datasets/(.+)/preupload/main", path):
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            self._answer({"files": files})
        elif match := re.fullmatch(r"/api/datasets/(.+)/commit/main", path):
            self._commit(repos[match[1]], [json.loads(line) for line in body.splitlines()], match[1])
        elif match := re.fullmatch(r"/api/datasets/(.+)/paths-info/[^/]+", path):
            files, wanted = repos[match[1]]["files"], _wanted(body)
            self._answer([_about(name, files[name]) for name in wanted if name in files])
        elif path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        else:
            self._answer({"error": f"no {path}"}, 404)

    def _commit(self, repo, entries, name):
        if self.server.refuses:
            self._answer({"error": "too many commits"}, self.server.refuses.pop(0))
            return
        for entry in entries:
            if entry["key"] == "file":
                repo["files"][entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            if entry["key"] == "deletedFile":
                del repo["files"][entry["value"]["path"]]
        repo["commits"].append([entry["value"]["path"] for entry in entries if entry["key"] != "header"])
        url = f"{self.server.url}/datasets/{name}/commit/{SHA}"
        self._answer({"commitUrl": url, "commitOid": SHA, "success": True})

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        repos = self.server.repos
        if match := re.fullmatch(r"/api/datasets/(.+?)/tree/[^/]+/?(.*)", path):
            self._tree(repos.get(match[1]), match[2])
        elif match := re.fullmatch(r"/datasets/(.+?)/resolve/[^/]+/(.+)", path):
            self._file(repos.get(match[1], {"files": {}})["files"].get(match[2]))
        elif (match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)(/revision/[^/]+)?", path)) and match[1] in repos:
            siblings = [{"rfilename": name} for name in repos[match[1]]["files"]]
            facts = {"id": match[1], "sha": SHA, "private": repos[match[1]]["private"], "siblings": siblings}
            self._answer({**facts, "tags": [], "downloads": 0, "likes": 0, "gated": False, "disabled": False})
        elif path == "/api/whoami-v2":
            self._answer({"name": "me", "type": "user"})
        else:
            self._answer({"error": f"no {path}"}, 404)

    do_HEAD = do_GET

    def _tree(self, repo, folder):
        if repo is None:
            self._answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
            return
        inside = {name: data for name, data in repo["files"].items() if not folder or name.startswith(f"{folder}/")}
        if folder and not inside:
            self._answer({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
            return
        found, folders = [], set()
        for name, data in inside.items():
            parts = name.removeprefix(f"{folder}/" if folder else "").split("/")
            if "recursive=true" in self.path.lower() or len(parts) == 1:
                found.append(_about(name, data))
            start = f"{folder}/" if folder else ""
            deep = len(parts) if "recursive=true" in self.path.lower() else 2
            folders.update(start + "/".join(parts[:depth]) for depth in range(1, deep) if depth < len(parts))
        found += [{"type": "directory", "path": name, "oid": SHA, "size": 0} for name in sorted(folders)]
        self._answer(found)

    def _file(self, data):
        if data is None:
            self._answer({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
            return
        status, part = 200, data
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            status, part = 206, data[int(wanted[1]) : int(wanted[2]) + 1 if wanted[2] else None]
        digest = hashlib.sha1(data).hexdigest()
        self._send(part, status, {"ETag": f'"{digest}"', "X-Repo-Commit": SHA, "Accept-Ranges": "bytes"})

    def _body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, value, status=200, headers=None):
        self._send(json.dumps(value).encode(), status, {"Content-Type": "application/json", **(headers or {})})

    def _send(self, data, status, headers):
        self.send_response_only(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_):
        pass


def _wanted(body):
    try:
        return json.loads(body)["paths"]
    except ValueError:
        return [
            unquote(one.partition("=")[2].replace("+", " ")) for one in body.decode().split("&") if one[:6] == "paths="
        ]


def _about(name, data):
    return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}


@contextmanager
def hub_server(monkeypatch):
    """The server: `repos` by name, each with `private`, `files` and `commits`; `refuses`: answers to the next commits."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    server.daemon_threads = True
    server.url, server.repos, server.refuses = f"http://127.0.0.1:{server.server_port}", {}, []
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecretsecret")
    huggingface_hub.HfFileSystem.clear_instance_cache()
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        huggingface_hub.HfFileSystem.clear_instance_cache()
