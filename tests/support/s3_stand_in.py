"""A stand-in for S3 that lists a hundred thousand objects at once: the few requests that clients make of a bucket.

moto, which tests elsewhere go to, goes through all of them for each page of a thousand.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right, insort
from contextlib import contextmanager
from email.utils import formatdate
from threading import Event, Lock
from xml.sax.saxutils import escape

from s3_server import use_s3
from served import Asked, served

_PAGE = 1000
_DATE = "2026-03-01T10:00:00.000Z"


class Bucket(dict):
    """The objects of all buckets, as `bucket/key`, and their names in order."""

    def __init__(self, objects=()):
        super().__init__(objects)
        self.order, self._turn = sorted(self), Lock()

    def __setitem__(self, name, data):
        with self._turn:
            if name not in self:
                insort(self.order, name)
            super().__setitem__(name, data)

    def pop(self, name, default=None):
        with self._turn:
            if name in self:
                del self.order[bisect_left(self.order, name)]
            return super().pop(name, default)

    def page(self, prefix, delimiter, after):
        """Objects and folders below a prefix that come after a name, and the name to go on after."""
        with self._turn:
            return self._page(prefix, delimiter, after)

    def _page(self, prefix, delimiter, after):
        objects, folders = [], []
        while len(objects) + len(folders) < _PAGE:
            at = bisect_right(self.order, max(after, prefix[:-1]))
            name = self.order[at] if at < len(self.order) else ""
            if not name.startswith(prefix):
                return objects, folders, ""
            inside, cut, _ = name[len(prefix) :].partition(delimiter or "\0")
            if cut:
                folders.append(prefix + inside + cut)
                after = folders[-1] + "\U0010ffff"
            else:
                objects.append(name)
                after = name
        return objects, folders, after


class _S3(Asked):
    """`/bucket/key`; any bucket is there, and no signature is checked."""

    def body(self):
        """Clients send chunks with a checksum behind them: in each a line with its length, which ends at a `;`."""
        data = super().body()
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return data
        found = b""
        while size := int(data.partition(b"\r\n")[0].partition(b";")[0], 16):
            data = data.partition(b"\r\n")[2]
            found, data = found + data[:size], data[size + 2 :]
        return found

    def do_GET(self):
        name, asked = self.place.strip("/"), self.server.asked
        asked.append((self.command, self.path))
        if "/" not in name:
            self._list(name) if self.command == "GET" else self.send(b"")
        elif name not in self.server.objects:
            self._xml("<Error><Code>NoSuchKey</Code><Message>The key does not exist.</Message></Error>", 404)
        else:
            data = self.server.objects[name]
            status, part = self.part_of(data)
            start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
            span = {"Content-Range": f"bytes {start}-{start + len(part) - 1}/{len(data)}"} if status == 206 else {}
            self.send(part, status, {**_about(data), **span})

    do_HEAD = do_GET

    def do_PUT(self):
        name, data = self.place.strip("/"), self.body()
        self.server.asked.append((self.command, self.path))
        if self.headers.get("X-Amz-Security-Token") == self.server.expired:
            self._xml(
                "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>", 400
            )
        elif "uploadId" in self.query:
            self.server.parts[name, int(self.query["partNumber"])] = data
            self.send(b"", 200, _about(data))
        else:
            self.server.objects[name] = data
            self.send(b"", 200, _about(data))

    def do_POST(self):
        name = self.place.strip("/")
        self.body()
        self.server.asked.append((self.command, self.path))
        if "uploads" in self.query:
            self._xml("<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>")
            return
        numbers = sorted(number for one, number in self.server.parts if one == name)
        self.server.objects[name] = b"".join(self.server.parts.pop((name, number)) for number in numbers)
        self._xml("<CompleteMultipartUploadResult><ETag>1</ETag></CompleteMultipartUploadResult>")

    def do_DELETE(self):
        self.server.asked.append((self.command, self.path))
        self.server.objects.pop(self.place.strip("/"))
        self.send(b"", 204)

    def _list(self, bucket):
        self.server.may_list.wait()
        query, cut = self.query, len(bucket) + 1
        after = query.get("continuation-token") or query.get("start-after") or ""
        objects, folders, then = self.server.objects.page(
            f"{bucket}/{query.get('prefix', '')}", query.get("delimiter"), f"{bucket}/{after}" if after else ""
        )
        rows = [
            f"<Contents><Key>{escape(name[cut:])}</Key><LastModified>{_DATE}</LastModified><ETag>{_tag(data)}</ETag>"
            f"<Size>{len(data)}</Size></Contents>"
            for name in objects
            for data in (self.server.objects.get(name),)
            if data is not None
        ]
        rows += [f"<CommonPrefixes><Prefix>{escape(name[cut:])}</Prefix></CommonPrefixes>" for name in folders]
        rows += [f"<NextContinuationToken>{escape(then[cut:])}</NextContinuationToken>"] if then else []
        more = (
            f"<KeyCount>{len(objects) + len(folders)}</KeyCount><IsTruncated>{str(bool(then)).lower()}</IsTruncated>"
        )
        self._xml(f"<ListBucketResult>{more}{''.join(rows)}</ListBucketResult>")

    def _xml(self, text, status=200):
        self.send(
            f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode(), status, {"Content-Type": "application/xml"}
        )


def _tag(data):
    return f'"{hashlib.md5(data).hexdigest()}"'


def _about(data):
    return {"ETag": _tag(data), "Last-Modified": formatdate(1772359200, usegmt=True), "Accept-Ranges": "bytes"}


@contextmanager
def s3_stand_in(monkeypatch, objects):
    """The server, with its `objects` by bucket and key, and what was `asked` of it: methods and paths.

    It answers what is listed when it `may_list`, and takes nothing with the session token that is `expired`.
    """
    with served(_S3, objects=Bucket(objects), parts={}, asked=[], may_list=Event(), expired="") as server:
        server.may_list.set()
        use_s3(monkeypatch, server.url)
        try:
            yield server
        finally:
            server.may_list.set()
