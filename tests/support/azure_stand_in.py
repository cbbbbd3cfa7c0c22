"""A stand-in for Azure's blobs: the few endpoints that the real client asks for to write, list and read them."""

from __future__ import annotations

import re
from contextlib import contextmanager
from threading import Lock
from xml.sax.saxutils import escape

from served import Asked, served

KEY = "YSBzZWNyZXQgb2YgdGhlIHRlc3Q="
_DATE = "Sun, 01 Mar 2026 10:00:00 GMT"


class _Azure(Asked):
    """`/account/container/name`; one container alone, and no signature is checked."""

    @property
    def names(self):
        _, _, container, *name = self.place.split("/", 3)
        return container, name[0] if name else ""

    def do_PUT(self):
        data = self.body()
        with self.server.turn:
            self._put(data)

    def _put(self, data):
        (_, name), blobs = self.names, self.server.blobs
        if self.names[0] != "box":
            self._missing("ContainerNotFound")
            return
        if self.query.get("comp") == "block":
            self.server.blocks[name, self.query["blockid"]] = data
        elif self.query.get("comp") == "blocklist":
            wanted = re.findall(r"<(?:Latest|Uncommitted)>(.*?)</", data.decode())
            blobs[name] = b"".join(self.server.blocks.pop((name, block)) for block in wanted)
        else:
            blobs[name] = data
        self.send(b"", 201, self._about(blobs.get(name, b"")))

    def do_GET(self):
        with self.server.turn:
            self._get()

    def _get(self):
        container, name = self.names
        if container != "box":
            self._missing("ContainerNotFound")
        elif self.query.get("comp") == "list":
            self._list()
        elif not name:
            self.send(b"", 200, self._about(b""))
        elif name not in self.server.blobs:
            self._missing("BlobNotFound")
        else:
            data = self.server.blobs[name]
            status, part = self.part_of(data)
            about = self._about(data)
            if status == 206:
                start = int(re.search(r"\d+", self.headers.get("x-ms-range") or self.headers["Range"])[0])
                about["Content-Range"] = f"bytes {start}-{start + len(part) - 1}/{len(data)}"
            self.send(part, status, about | {"Content-Length": str(len(part))})

    do_HEAD = do_GET

    def do_DELETE(self):
        with self.server.turn:
            self.server.blobs.pop(self.names[1], None)
        self.send(b"", 202)

    def _list(self):
        start, end = self.query.get("prefix", ""), self.query.get("delimiter")
        found = [name for name in sorted(self.server.blobs) if name.startswith(start)]
        folders = {name[: name.index(end, len(start)) + 1] for name in found if end and end in name[len(start) :]}
        blobs = [name for name in found if not any(name.startswith(folder) for folder in folders)]
        rows = [f"<BlobPrefix><Name>{escape(folder)}</Name></BlobPrefix>" for folder in sorted(folders)]
        rows += [
            f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{_DATE}</Last-Modified><Etag>"
            f"{hash(self.server.blobs[name])}</Etag><Content-Length>{len(self.server.blobs[name])}</Content-Length>"
            "<BlobType>BlockBlob</BlobType></Properties></Blob>"
            for name in blobs
        ]
        head = f'<EnumerationResults ServiceEndpoint="{self.server.url}/me" ContainerName="box">'
        text = f"{head}<Blobs>{''.join(rows)}</Blobs><NextMarker/></EnumerationResults>"
        self.send(text.encode(), 200, {"Content-Type": "application/xml"})

    def _about(self, data):
        kind = {"x-ms-blob-type": "BlockBlob", "x-ms-creation-time": _DATE, "x-ms-request-server-encrypted": "true"}
        length = {"Content-Length": str(len(data) if self.command in {"GET", "HEAD"} else 0)}
        return {"ETag": f'"{hash(data)}"', "Last-Modified": _DATE, "Accept-Ranges": "bytes", **kind, **length}

    def _missing(self, code):
        text = f"<Error><Code>{code}</Code><Message>The specified thing does not exist.</Message></Error>"
        self.send(text.encode(), 404, {"x-ms-error-code": code, "Content-Type": "application/xml"})


@contextmanager
def azure(monkeypatch):
    """The server, with its `blobs` by name, in a container `box`."""
    with served(_Azure, blobs={}, blocks={}, turn=Lock()) as server:
        endpoint = f"BlobEndpoint={server.url}/me"
        connection = f"DefaultEndpointsProtocol=http;AccountName=me;AccountKey={KEY};{endpoint};"
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection)
        yield server
