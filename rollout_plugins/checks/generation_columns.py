"""One generation as numpy arrays. All checks share them, so each is computed once, and only when a check needs it."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollout_plugins.checks.shared import shared_now

# NumPy arrays are not type-checked, so these aliases document their element types.
Floats: TypeAlias = Any
Integers: TypeAlias = Any
Flags: TypeAlias = Any
Bytes: TypeAlias = Any
Texts: TypeAlias = Any

#: How many bytes of each answer the text checks read: its first ones and its last ones.
HEAD, TAIL = 256, 192
#: Prompts and completions longer than this are hashed by their length and their two ends.
_HASHED = 1024


def columns_of(table: pa.Table) -> GenerationColumns:
    """Return the columns of a generation; the same object for every check that looks at the same generation."""
    ids, shared = _one_chunk(table["id"]), shared_now()
    columns: GenerationColumns | None = shared.columns if shared else None
    if columns is None or not columns.has_ids(ids):
        columns = GenerationColumns(ids)
        if shared:
            shared.columns = columns
    columns.table = table
    return columns


class TextColumn:
    """Texts as Arrow stores them: one buffer of UTF-8 bytes, and where each text begins and ends."""

    def __init__(self, texts: pa.Array) -> None:
        _, offsets, data = texts.buffers()
        self.offsets: Integers = np.zeros(len(texts) + 1, np.int64)
        if offsets is not None and len(texts):
            self.offsets = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
        self.data = memoryview(b"" if data is None else data)

    @property
    def sizes(self) -> Integers:
        """The length of each text in bytes."""
        return np.diff(self.offsets)

    def head(self, place: int, size: int) -> bytes:
        """Return the first bytes of a text."""
        start, end = self.offsets[place], self.offsets[place + 1]
        return bytes(self.data[start : min(end, start + size)])

    def tail(self, place: int, size: int) -> bytes:
        """Return the last bytes of a text."""
        start, end = self.offsets[place], self.offsets[place + 1]
        return bytes(self.data[max(start, end - size) : end])

    def hashes(self, starts: Integers) -> Integers:
        """Return a hash for the texts between each two starts; contiguous texts are contiguous bytes."""
        ends = self.offsets[starts].tolist()
        return np.array([self._hash(a, b) for a, b in pairwise(ends)], np.int64)

    def _hash(self, start: int, end: int) -> int:
        if end - start <= _HASHED:
            return hash(bytes(self.data[start:end]))
        half = _HASHED // 2
        return hash((bytes(self.data[start : start + half]), bytes(self.data[end - half : end]), end - start))


class MessageColumns:
    """All prompts or all completions of a generation, message by message."""

    def __init__(self, messages: pa.ListArray) -> None:
        offsets = messages.offsets.to_numpy()
        self.starts: Integers = (offsets - offsets[0]).astype(np.int64)
        """Where each rollout's messages begin, and the end of the last."""
        self._flat = messages.values.slice(offsets[0], offsets[-1] - offsets[0])
        self.texts = TextColumn(self._flat.field("content"))

    @cached_property
    def owners(self) -> Integers:
        """The rollout of each message."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    @cached_property
    def is_answer(self) -> Flags:
        """Which messages the assistant wrote."""
        return _flags(pc.equal(self._flat.field("role"), "assistant"))

    @cached_property
    def answers(self) -> Integers:
        """The messages that the assistant wrote."""
        return np.flatnonzero(self.is_answer)

    @cached_property
    def answer_owners(self) -> Integers:
        """The rollout of each message that the assistant wrote."""
        return self.owners[self.answers]

    @cached_property
    def first_answers(self) -> Integers:
        """The first message of each rollout that the assistant wrote; -1 where there is none."""
        first = np.full(len(self.starts) - 1, -1)
        first[self.answer_owners[::-1]] = self.answers[::-1]
        return first

    @cached_property
    def last_answers(self) -> Integers:
        """The last message of each rollout that the assistant wrote; -1 where there is none."""
        last = np.full(len(self.starts) - 1, -1)
        last[self.answer_owners] = self.answers
        return last

    @cached_property
    def has_calls(self) -> Flags:
        """Which messages have tool calls in them."""
        return np.asarray(pc.fill_null(pc.list_value_length(self._flat.field("tool_calls")), 0)) > 0

    @cached_property
    def reasoning_sizes(self) -> Integers:
        """The length of each message's reasoning in bytes; 0 where it has none."""
        return TextColumn(self._flat.field("reasoning")).sizes

    @cached_property
    def roles(self) -> list[str]:
        roles: list[str] = self._flat.field("role").to_pylist()
        return roles

    @cached_property
    def hashes(self) -> Integers:
        """A hash of the texts of each rollout's messages."""
        return self.texts.hashes(self.starts)


class GenerationColumns:
    """One generation, field by field, as numpy arrays; NaN stands for what is missing."""

    table: pa.Table
    """The columns that the check which looks right now has declared."""

    def __init__(self, ids: pa.Array) -> None:
        self._ids = ids
        self.count = len(ids)

    def has_ids(self, ids: pa.Array) -> bool:
        """Return whether these ids are the ones of this generation: the same place in the same memory."""
        own = self._ids
        return len(own) == len(ids) and own.offset == ids.offset and _address(own) == _address(ids)

    def ids(self, places: Any, limit: int = 5) -> tuple[str, ...]:
        """Return the ids of some rollouts, as evidence: places, or a flag for each rollout."""
        places = np.asarray(places)
        places = np.flatnonzero(places) if places.dtype == bool else places
        return tuple(self._ids[int(place)].as_py() for place in places[:limit])

    def array(self, name: str) -> pa.Array:
        """Return a column as one Arrow array."""
        return _one_chunk(self.table[name])

    @cached_property
    def reward(self) -> Floats:
        return _floats(self.array("reward"))

    @cached_property
    def advantage(self) -> Floats:
        return _floats(self.array("advantage"))

    @cached_property
    def contrast(self) -> Floats:
        """How much better each rollout is than its group: its advantage, or its reward less the group's mean."""
        if not np.isnan(self.advantage).all():
            return self.advantage
        return self.less_group_mean(self.reward)

    @cached_property
    def completion_tokens(self) -> Floats:
        return _floats(self.array("completion_tokens"))

    @cached_property
    def finish(self) -> Texts:
        return np.array(self.array("finish").to_pylist(), object)

    @cached_property
    def calls(self) -> Integers:
        """How many tool calls each rollout has."""
        return _floats(self.array("calls")).astype(np.int64)

    # --- groups -----------------------------------------------------------------------------------------------------

    @cached_property
    def groups(self) -> Integers:
        """The group of each rollout, numbered from 0."""
        return np.unique(np.asarray(self.array("group")), return_inverse=True)[1].astype(np.int64)

    @cached_property
    def group_sizes(self) -> Integers:
        return np.bincount(self.groups)

    @cached_property
    def group_starts(self) -> Integers:
        """The first rollout of each group."""
        first = np.full(len(self.group_sizes), 0)
        first[self.groups[::-1]] = np.arange(self.count)[::-1]
        return first

    def group_means(self, values: Floats) -> Floats:
        """Return the mean of each group, without missing values; NaN for a group that has none."""
        is_number = np.isfinite(values)
        sums = np.bincount(self.groups, np.where(is_number, values, 0.0))
        counts = np.bincount(self.groups, is_number)
        return np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)

    def less_group_mean(self, values: Floats) -> Floats:
        """Return each value less the mean of its group."""
        return values - self.group_means(values)[self.groups]

    @cached_property
    def group_spread(self) -> Floats:
        """The difference between the highest and the lowest reward of each group; NaN below two rewards."""
        order = np.argsort(self.groups, kind="stable")
        starts = np.concatenate([[0], np.cumsum(self.group_sizes)[:-1]])
        high = np.fmax.reduceat(self.reward[order], starts)
        low = np.fmin.reduceat(self.reward[order], starts)
        counts = np.bincount(self.groups, ~np.isnan(self.reward))
        return np.where(counts > 1, high - low, np.nan)

    # --- rewards ----------------------------------------------------------------------------------------------------

    @cached_property
    def rewards(self) -> dict[str, Floats]:
        """The values of each reward function; NaN also where it gave none."""
        return {name: values for name, (values, _) in self.given_rewards.items()}

    @cached_property
    def given_rewards(self) -> dict[str, tuple[Floats, Flags]]:
        """The values of each reward function, and where it gave one, which may be NaN."""
        lists = self.array("rewards")
        offsets = lists.offsets.to_numpy()
        pairs = lists.values.slice(offsets[0], offsets[-1] - offsets[0])
        owners: Integers = np.repeat(np.arange(self.count), np.diff(offsets))
        names, places = _encoded(pairs.field("name"))
        values, is_given = _floats(pairs.field("value")), ~_flags(pc.is_null(pairs.field("value")))
        by_name = {}
        for number, name in enumerate(names):
            own = places == number
            column: Floats = np.full(self.count, np.nan)
            given: Flags = np.zeros(self.count, bool)
            column[owners[own]], given[owners[own]] = values[own], is_given[own]
            by_name[name] = (column, given)
        return by_name

    # --- texts ------------------------------------------------------------------------------------------------------

    @cached_property
    def completion(self) -> MessageColumns:
        return MessageColumns(self.array("completion"))

    @cached_property
    def prompt(self) -> MessageColumns:
        return MessageColumns(self.array("prompt"))

    @cached_property
    def answer_sizes(self) -> Floats:
        """How many bytes the assistant wrote in each rollout."""
        sizes = self.completion.texts.sizes[self.completion.answers]
        return np.bincount(self.completion.answer_owners, sizes, minlength=self.count)

    @cached_property
    def lengths(self) -> Floats:
        """How long each completion is: in tokens where they were counted, else in bytes."""
        tokens = self.completion_tokens
        return self.answer_sizes if np.isnan(tokens).all() else tokens

    @cached_property
    def heads(self) -> list[bytes]:
        """The first bytes of each rollout's first answer."""
        texts = self.completion.texts
        return [texts.head(at, HEAD) if at >= 0 else b"" for at in self.completion.first_answers.tolist()]

    @cached_property
    def tails(self) -> list[bytes]:
        """The last bytes of each rollout's last answer."""
        texts = self.completion.texts
        return [texts.tail(at, TAIL) if at >= 0 else b"" for at in self.completion.last_answers.tolist()]

    @cached_property
    def head_bytes(self) -> Bytes:
        """The first bytes of each answer as a matrix, filled up with zeros."""
        filled = b"".join([head.ljust(HEAD, b"\0") for head in self.heads])
        return np.frombuffer(filled, np.uint8).reshape(self.count, HEAD)

    @cached_property
    def tail_bytes(self) -> Bytes:
        """The last bytes of each answer as a matrix, filled up with zeros in front."""
        filled = b"".join([tail.rjust(TAIL, b"\0") for tail in self.tails])
        return np.frombuffer(filled, np.uint8).reshape(self.count, TAIL)

    # --- tool calls -------------------------------------------------------------------------------------------------

    @cached_property
    def call_owners(self) -> Integers:
        """The rollout of each tool call."""
        return np.repeat(np.arange(self.count), np.diff(self.array("tool_calls").offsets.to_numpy()))

    @cached_property
    def flat_calls(self) -> pa.StructArray:
        """The tool calls of all rollouts, in order."""
        lists = self.array("tool_calls")
        offsets = lists.offsets
        return lists.values.slice(offsets[0].as_py(), offsets[-1].as_py() - offsets[0].as_py())

    @cached_property
    def call_names(self) -> tuple[list[str], Integers]:
        """The names of tools, and the place of each call's in them."""
        return _encoded(self.flat_calls.field("name"))

    @cached_property
    def call_statuses(self) -> Texts:
        return np.array(self.flat_calls.field("status").to_pylist(), object)

    # --- tokens -----------------------------------------------------------------------------------------------------

    def tokens(self, field: str) -> tuple[Integers, Integers]:
        """Return where each rollout's list of token data begins, with the end of the last, and all values.

        A missing list is empty.
        """
        name = f"_tokens_{field}"
        if name not in self.__dict__:
            lists = pc.struct_field(self.array("tokens"), field)
            sizes = np.asarray(pc.fill_null(pc.list_value_length(lists), 0), np.int64)
            values = lists.flatten()
            kind = np.float64 if pa.types.is_floating(values.type) else np.int64
            numbers = values.to_numpy(zero_copy_only=False)
            self.__dict__[name] = (
                np.concatenate([[0], np.cumsum(sizes)]),
                numbers if numbers.dtype.kind in "if" else numbers.astype(kind),
            )
        result: tuple[Integers, Integers] = self.__dict__[name]
        return result


def text_of(raw: bytes, limit: int = 60) -> str:
    """Return bytes of UTF-8 as one printable line for a message."""
    text = " ".join(raw.decode("utf-8", "ignore").split())
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _address(texts: pa.Array) -> int | None:
    buffer = texts.buffers()[1]
    return None if buffer is None else int(buffer.address)


def _floats(values: pa.Array) -> Floats:
    numbers = values.to_numpy(zero_copy_only=False)
    return numbers if numbers.dtype == np.float64 else numbers.astype(np.float64)


def _flags(values: pa.Array) -> Flags:
    return np.asarray(pc.fill_null(values, False).to_numpy(zero_copy_only=False), bool)


def _encoded(texts: pa.Array) -> tuple[list[str], Integers]:
    """Return the distinct texts, and the place of each text among them."""
    encoded = texts.fill_null("").dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
