"""Hold token ids, masks and log-probabilities until they are stored, packed at 4, 1 and 8 bytes per token.

As Python lists they would take about 40 bytes each, and a copy would have to visit every number.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, Final

from rollout_hookspecs import Tokens

from rollout_plugins.content.hashing import is_array, is_tensor

#: The type code of each field's numbers, for `struct` and `array` alike.
CODES: Final = {
    "prompt": "i", "completion": "i", "mask": "b", "logprobs": "d", "trainer_logprobs": "d", "reference_logprobs": "d",
}  # fmt: skip
_LISTS: Final = (list, tuple)


class Numbers(Sequence[Any]):
    """One field of the tokens of many rollouts: their lists contiguous in `flat`; `numbers[3]` creates a list.

    Values other than lists of such numbers are in `others`, by their index.
    """

    def __init__(self, values: Sequence[Any], code: str, copy: Callable[[Any], Any]) -> None:
        """Pack the values; `copy` copies a value that is not a list of plain numbers."""
        values = [_as_array(value) if is_array(value) or is_tensor(value) else value for value in values]
        lengths = [len(value) if type(value) in _LISTS or _is_row(value) else 0 for value in values]
        self.starts: list[int] = list(accumulate(lengths, initial=0))
        self.flat = array(code, [0]) * self.starts[-1]
        self.others: dict[int, Any] = {}
        for index, value in enumerate(values):
            if not self._pack(index, value):
                self.others[index] = copy(value)

    def _pack(self, place: int, value: Any) -> bool:
        if _is_row(value):
            return self._pack_array(place, value)
        if type(value) not in _LISTS or (value and not _starts_with_number(value[0], self.flat.typecode)):
            return False
        try:
            # Twice as fast as an `array` of the list, and strict: floats and too large integers raise.
            kind = f"{len(value)}{self.flat.typecode}"
            struct.pack_into(kind, self.flat, self.starts[place] * self.flat.itemsize, *value)
        except Exception:  # the `__index__` of a foreign number may raise anything
            return False
        return True

    def _pack_array(self, place: int, value: Any) -> bool:
        """Pack a numpy array if its numbers stay the same in the type of this field."""
        code = self.flat.typecode
        if value.dtype.kind not in ("f" if code == "d" else "biu"):
            return False
        cast = value.astype(code)
        if code != "d" and not (cast == value).all():
            return False
        if len(value):
            memoryview(self.flat)[self.starts[place] : self.starts[place + 1]] = memoryview(cast)
        return True

    @property
    def nbytes(self) -> int:
        """Bytes of the packed numbers."""
        return len(self.flat) * self.flat.itemsize

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: Any) -> Any:
        return _to_list(self.packed(index))

    def packed(self, index: int) -> Any:
        """Return one list in packed form without a copy, or the value that stands in its place."""
        if index in self.others:
            return self.others[index]
        return memoryview(self.flat)[self.starts[index] : self.starts[index + 1]]


def _as_array(value: Any) -> Any:
    """Return a tensor on the CPU as a numpy array without a copy; other values unmodified."""
    with suppress(Exception):  # numpy lacks some types, such as bfloat16
        return value.detach().numpy() if is_tensor(value) and value.device.type == "cpu" else value
    return value


def _is_row(value: Any) -> bool:
    return is_array(value) and value.ndim == 1


def _starts_with_number(first: Any, code: str) -> bool:
    """Return whether the first value has the exact type: a 64-bit float cannot represent every integer."""
    kind = type(first)
    return kind is (float if code == "d" else int) or (kind.__module__ == "numpy" and first.shape == ())


class TokenColumn(Sequence[Any]):
    """The tokens of a batch by field, for the store; `column[3]` creates a record with lists, for plugins."""

    def __init__(self, fields: Mapping[str, Sequence[Any]], others: Mapping[int, Any]) -> None:
        """Initialize the column. `others` maps rows without tokens to the value in their place, nearly always None."""
        self.fields = fields
        self.others = others

    @classmethod
    def of(cls, records: Sequence[Any]) -> TokenColumn:
        """Return the column of records, whose fields may be arrays or tensors."""
        if isinstance(records, TokenColumn):
            return records
        others = {place: value for place, value in enumerate(records) if not issubclass(type(value), Tokens)}
        records_or_none = [None if place in others else value for place, value in enumerate(records)]
        return cls(
            {
                name: [None if record is None else getattr(record, name) for record in records_or_none]
                for name in CODES
            },
            others,
        )

    @classmethod
    def copied(cls, rows: Sequence[Mapping[str, Any] | None], copy: Callable[[Any], Any]) -> TokenColumn:
        """Return a packed copy of the fields of `Tokens`."""
        columns = {name: [None if row is None else row.get(name) for row in rows] for name in CODES}
        others = {place: None for place, row in enumerate(rows) if row is None}
        return cls({name: Numbers(values, CODES[name], copy) for name, values in columns.items()}, others)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed fields."""
        return sum(one.nbytes for one in self.fields.values() if isinstance(one, Numbers))

    def __len__(self) -> int:
        return len(self.fields["prompt"])

    def __getitem__(self, index: Any) -> Any:
        if index in self.others:
            return self.others[index]
        return Tokens(**{name: _to_list(values[index]) for name, values in self.fields.items()})

    def take(self, order: Sequence[int]) -> TokenColumn:
        """Return the rows with the indices `order`."""
        fields = {name: [_packed(values, place) for place in order] for name, values in self.fields.items()}
        return TokenColumn(fields, {at: self.others[place] for at, place in enumerate(order) if place in self.others})


def pack(values: Any, code: str) -> array[Any] | None:
    """Return a list of numbers as an array of type `code`; None for any other value."""
    numbers = Numbers([values], code, lambda _: None)
    return None if numbers.others else numbers.flat


def _packed(values: Sequence[Any], place: int) -> Any:
    return values.packed(place) if isinstance(values, Numbers) else values[place]


def _to_list(values: Any) -> Any:
    """Return an array or a tensor as the list that the contract promises; other values unmodified."""
    try:
        return values.tolist() if hasattr(values, "tolist") else values
    except Exception:  # the store marks an array that cannot become a list
        return values
