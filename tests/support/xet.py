"""A stand-in for Xet, the storage behind the Hub: what the real client, `hf_xet`, asks for to send files.

Files come as blocks of compressed chunks and, in the end, as lists of which chunks make which file. Here they are put
together when a file is asked for. Nothing is deduplicated across uploads.
"""

from __future__ import annotations

import hashlib
import struct

import pyarrow as pa

_HEADER, _ENTRY = 48, struct.Struct("<32s4I")
_VERIFIED, _MORE = 1 << 31, 1 << 30


class Xet:
    """What was sent: `blocks` of chunks, and `files` as lists of block, first and last chunk."""

    def __init__(self):
        self.blocks, self.files, self.refuses = {}, {}, []

    def take_block(self, name, data):
        self.blocks[name] = list(_chunks(data))

    def take_files(self, data):
        at = _HEADER
        while True:
            name, flags, count, *_ = _ENTRY.unpack_from(data, at)
            if name == b"\xff" * 32:
                return
            entries = [_ENTRY.unpack_from(data, at + _ENTRY.size * number) for number in range(1, count + 1)]
            self.files[_hex(name)] = [(_hex(block), first, last) for block, _, _, first, last in entries]
            at += _ENTRY.size * (1 + count * (2 if flags & _VERIFIED else 1) + (1 if flags & _MORE else 0))

    def content(self, name):
        parts = self.files[name] if name.strip("0") else []
        return b"".join(chunk for block, first, last in parts for chunk in self.blocks[block][first:last])

    def of_sha256(self, digest):
        return next(data for data in map(self.content, self.files) if hashlib.sha256(data).hexdigest() == digest)


def _chunks(data):
    """Each has a header: version, length, compression and length when it is expanded."""
    at = 0
    while at < len(data) and data[at] == 0:
        length, kind, whole = (int.from_bytes(data[at + a : at + b], "little") for a, b in ((1, 4), (4, 5), (5, 8)))
        at += 8
        chunk = data[at : at + length]
        if kind:
            chunk = bytes(pa.decompress(chunk, whole, "lz4"))
        yield _regrouped(chunk) if kind == 2 else chunk
        at += length


def _regrouped(data):
    """From all first bytes of four, then all second ones, and so on."""
    found, at = bytearray(len(data)), 0
    for place in range(4):
        count = len(range(place, len(data), 4))
        found[place::4] = data[at : at + count]
        at += count
    return bytes(found)


def _hex(name):
    """Hashes are written in words of eight bytes, the last byte of each first."""
    return b"".join(name[at : at + 8][::-1] for at in range(0, 32, 8)).hex()
