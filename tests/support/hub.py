"""A stand-in for the Hugging Face Hub: the few endpoints that the real client asks for to make, fill and read a repo."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from contextlib import contextmanager
from threading import Lock
from urllib.parse import parse_qs

import huggingface_hub
from huggingface_hub import constants
from served import Asked, served
from xet import Xet

SHA = "1" * 40
_DATE = "2026-03-01T10:00:00.000Z"
_REPO = r"/api/(?:datasets|models)/([^/]+/[^/]+)(?:/revision/[^/]+)?"


class _Hub(Asked):
    def do_POST(self):
        body = self.body()
        with self.server.turn:
            self._post(self.place, body)

    def _post(self, path, body):
        repos = self.server.repos
        if path == "/api/repos/create":
            about = json.loads(body)
            name = f"{about.get('organization') or 'me'}/{about['name']}"
            repos.setdefault(name, {"private": about.get("visibility") == "private", "files": {}, "commits": []})
            self.answer({"url": f"{self.server.url}/{name}", "id": name, "name": name})
        elif match := re.fullmatch(r"/api/(?:datasets|models)/(.+)/preupload/[^/]+", path):
            names = [file["path"] for file in json.loads(body)["files"]]
            ways = ["lfs" if name.endswith(".parquet") else "regular" for name in names]
            files = [
                {"path": name, "uploadMode": way, "shouldIgnore": False} for name, way in zip(names, ways, strict=True)
            ]
            self.answer({"files": files})
        elif match := re.fullmatch(r"/api/(?:datasets|models)/(.+)/commit/[^/]+", path):
            self._commit(repos[match[1]], [json.loads(line) for line in body.splitlines()], match[1])
        elif match := re.fullmatch(r"/api/datasets/(.+)/paths-info/[^/]+", path):
            files, wanted = repos[match[1]]["files"], _wanted(body)
            self.answer([_about(name, files[name]) for name in wanted if name in files])
        elif path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif match := re.fullmatch(r"/api/buckets/([^/]+/[^/]+)/batch", path):
            self._batch(self.server.buckets[match[1]], [json.loads(line) for line in body.splitlines()])
        elif match := re.fullmatch(r"/api/buckets/([^/]+/[^/]+)/paths-info", path):
            files = self.server.buckets[match[1]]["files"]
            self.answer([self._in_bucket(name, files[name]) for name in _wanted(body) if name in files])
        elif match := re.fullmatch(r"/api/buckets/([^/]+/[^/]+)", path):
            status = 409 if match[1] in self.server.buckets else 200
            about = {"private": json.loads(body).get("visibility") == "private", "files": {}, "batches": []}
            self.server.buckets.setdefault(match[1], about)
            self.answer({"url": f"{self.server.url}/buckets/{match[1]}"}, status)
        elif path.startswith("/xet/"):
            self._store(path, body)
        else:
            self.answer({"error": f"no {path}"}, 404)

    def _batch(self, bucket, entries):
        if self.server.refuses:
            self.answer({"error": "refused"}, self.server.refuses.pop(0))
            return
        for entry in entries:
            if entry["type"] == "addFile":
                bucket["files"][entry["path"]] = entry["xetHash"]
            else:
                bucket["files"].pop(entry["path"], None)
        bucket["batches"].append([entry["path"] for entry in entries])
        self.answer({"success": True, "processed": len(entries), "succeeded": len(entries), "failed": []})

    def _store(self, path, body):
        if self.headers["Authorization"] != "Bearer token-for-xet":
            self.answer({"error": "no token"}, 401)
        elif self.server.xet.refuses:
            self.answer({"error": "refused"}, self.server.xet.refuses.pop(0))
        elif match := re.fullmatch(r"/xet/v1/xorbs/default/(\w+)", path):
            self.server.xet.take_block(match[1], body)
            self.answer({"was_inserted": True})
        elif path == "/xet/v1/shards":
            self.server.xet.take_files(body)
            self.answer({"result": 1})
        else:  # what the client has another way for
            self.answer({"error": f"no {path}"}, 404)

    def _in_bucket(self, name, digest):
        size = len(self.server.xet.content(digest))
        return {"type": "file", "path": name, "size": size, "xetHash": digest, "uploadedAt": _DATE}

    def _commit(self, repo, entries, name):
        if self.server.refuses:
            self.answer({"error": "refused"}, self.server.refuses.pop(0))
            return
        for entry in entries:
            if entry["key"] == "file":
                repo["files"][entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            if entry["key"] == "lfsFile":
                repo["files"][entry["value"]["path"]] = self.server.xet.of_sha256(entry["value"]["oid"])
            if entry["key"] == "deletedFile":
                del repo["files"][entry["value"]["path"]]
        repo["commits"].append([entry["value"]["path"] for entry in entries if entry["key"] != "header"])
        self.answer({"commitUrl": f"{self.server.url}/{name}/commit/{SHA}", "commitOid": SHA, "success": True})

    def do_GET(self):
        with self.server.turn:
            self._get(self.place, self.server.repos)

    def _get(self, path, repos):
        if match := re.fullmatch(r"/api/datasets/(.+?)/tree/[^/]+/?(.*)", path):
            self._tree(repos.get(match[1]), match[2])
        elif match := re.fullmatch(r"/datasets/(.+?)/resolve/[^/]+/(.+)", path):
            self._file(repos.get(match[1], {"files": {}})["files"].get(match[2]))
        elif (match := re.fullmatch(_REPO, path)) and match[1] not in repos:
            self._no_repo()
        elif match:
            siblings = [{"rfilename": name} for name in repos[match[1]]["files"]]
            facts = {"id": match[1], "sha": SHA, "private": repos[match[1]]["private"], "siblings": siblings}
            self.answer({**facts, "tags": [], "downloads": 0, "likes": 0, "gated": False, "disabled": False})
        elif match := re.fullmatch(r"/api/buckets/([^/]+/[^/]+)/tree/?(.*)", path):
            self._bucket_tree(self._bucket(match[1]), match[2])
        elif match := re.fullmatch(r"/buckets/([^/]+/[^/]+)/resolve/(.+)", path):
            digest = self._bucket(match[1])["files"].get(match[2])
            self._file(None if digest is None else self.server.xet.content(digest))
        elif re.fullmatch(r"/api/(?:buckets|datasets|models)/.+/xet-write-token(?:/.+)?", path):
            about = {
                "accessToken": "token-for-xet",
                "exp": int(time.time()) + 3600,
                "casUrl": f"{self.server.url}/xet",
            }
            self.answer(about)
        elif match := re.fullmatch(r"/api/buckets/([^/]+/[^/]+)", path):
            self._about_bucket(match[1], self.server.buckets.get(match[1]))
        elif path == "/api/whoami-v2":
            self.answer({"name": "me", "type": "user"})
        else:
            self.answer({"error": f"no {path}"}, 404)

    do_HEAD = do_GET

    def _tree(self, repo, folder):
        if repo is None:
            self._no_repo()
            return
        start = f"{folder}/" if folder else ""
        inside = {name: data for name, data in repo["files"].items() if name.startswith(start)}
        if folder and not inside:
            self.answer({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
            return
        is_deep = "recursive=true" in self.path.lower()
        found, folders = [], set()
        for name, data in inside.items():
            parts = name.removeprefix(start).split("/")
            if is_deep or len(parts) == 1:
                found.append(_about(name, data))
            above = parts[:-1] if is_deep else parts[:-1][:1]
            folders.update(start + "/".join(above[:depth]) for depth in range(1, len(above) + 1))
        self.answer([*found, *({"type": "directory", "path": one, "oid": SHA, "size": 0} for one in sorted(folders))])

    def _no_repo(self):
        self.answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})

    def _bucket(self, name):
        return self.server.buckets.get(name, {"files": {}})

    def _about_bucket(self, name, bucket):
        if bucket is None:
            self._no_repo()
        else:
            facts = {"id": name, "private": bucket["private"], "createdAt": _DATE}
            self.answer({**facts, "size": 0, "totalFiles": len(bucket["files"])})

    def _bucket_tree(self, bucket, folder):
        start = f"{folder}/" if folder else ""
        found, folders = [], set()
        for name, digest in bucket["files"].items():
            inside, cut, _ = name.removeprefix(start).partition("/")
            if not name.startswith(start):
                continue
            if cut and "recursive=true" not in self.path.lower():
                folders.add(start + inside)
            else:
                found.append(self._in_bucket(name, digest))
        self.answer([*found, *({"type": "directory", "path": one, "uploadedAt": _DATE} for one in sorted(folders))])

    def _file(self, data):
        if data is None:
            self.answer({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
            return
        status, part = self.part_of(data)
        digest = hashlib.sha1(data).hexdigest()
        self.send(part, status, {"ETag": f'"{digest}"', "X-Repo-Commit": SHA, "Accept-Ranges": "bytes"})


def _wanted(body):
    try:
        return json.loads(body)["paths"]
    except ValueError:
        return parse_qs(body.decode())["paths"]


def _about(name, data):
    return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}


@contextmanager
def hub(monkeypatch):
    """The server: `repos` by name, each with `private`, `files` and `commits`; `refuses`: answers to the next commits.

    `buckets` likewise, whose files are in `xet`.
    """
    with served(_Hub, repos={}, refuses=[], buckets={}, xet=Xet(), turn=Lock()) as server:
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", "hf_secretsecretsecret")
        monkeypatch.setattr("transformers.utils.hub._hf_api", None, raising=False)
        huggingface_hub.HfFileSystem.clear_instance_cache()
        yield server
    huggingface_hub.HfFileSystem.clear_instance_cache()
