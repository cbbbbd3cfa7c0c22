"""Values for the store's tests: ordinary ones that must come back equal, and hostile ones that must cost only themselves."""

import math
import struct
from collections import OrderedDict, UserDict, defaultdict
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from rollout_plugins import Image


def same(one, other):
    """Whether two values are equal with all their types: 1 is neither 1.0 nor True, -0.0 not 0.0, and NaN is NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict):
        return len(one) == len(other) and all(any(same(pair, mate) for mate in other.items()) for pair in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    return one == other


NASTY = [
    *(2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**400, 0, 1, True, False, None),
    *(0.0, 1.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1e22),
    *("\x00", "\ud83d\ude00", "\ud800", "\\ud800\ud800", "$5", "$lost", '"$str":', "\u202e", "é", ""),
]
text = st.text(st.characters(), max_size=12)  # surrogates too
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**400), 10**400),
    st.sampled_from(NASTY),
    st.floats(),
    text,
)
spoken = st.one_of(
    st.binary(max_size=8),
    st.datetimes(),
    st.just(datetime(2026, 1, 2, tzinfo=timezone.utc)),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.builds(Image, hash=st.text(st.characters(), min_size=1, max_size=4), note=st.none() | text),
)
keys = st.one_of(text, st.sampled_from(["role", "content", "tool_calls", "$str", "$lost", "$ref", "type"]))


def _containers(children):
    return st.one_of(
        st.lists(children, max_size=4),
        st.lists(children, max_size=3).map(tuple),
        st.dictionaries(keys, children, max_size=4),
        st.dictionaries(
            st.one_of(keys, st.integers(), st.none(), st.tuples(st.integers(), text)), children, max_size=3
        ),
    )


kept = st.recursive(st.one_of(scalars, spoken), _containers, max_leaves=12)
json_values = st.recursive(
    scalars, lambda c: st.lists(c, max_size=4) | st.dictionaries(keys, c, max_size=4), max_leaves=12
)


class Evil:
    """Objects to being looked at in any way."""

    def __repr__(self):
        raise RuntimeError("no")

    __str__ = __eq__ = __bool__ = __len__ = __iter__ = __int__ = __float__ = __repr__
    __hash__ = None

    @property
    def __class__(self):
        raise RuntimeError("no")


class Quits:
    """Ends the process of whoever looks at it."""

    def __repr__(self):
        raise SystemExit(3)

    __str__ = __float__ = __int__ = __repr__


class BadItems(dict):
    def items(self):
        raise RuntimeError("no")

    keys = values = __iter__ = __getitem__ = get = items


class BadMapping(UserDict):
    def __iter__(self):
        raise RuntimeError("no")

    def __len__(self):
        return 2


class Meta(type):
    @property
    def __module__(cls):
        raise RuntimeError("no")


class Nameless(metaclass=Meta):
    pass


class HashableDict(dict):
    def __hash__(self):
        return 1


class Text(str):
    __slots__ = ()

    def __str__(self):
        raise RuntimeError("no")


class Whole(int):
    def __int__(self):
        raise RuntimeError("no")

    __index__ = __repr__ = __int__


class Color(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: int
    y: float


def cycle():
    value = {"a": [1]}
    value["a"].append(value)
    return value


def wide_cycle():
    value = []
    value += [value] * 1000
    return value


def deep(levels=5000):
    value = "end"
    for _ in range(levels):
        value = [value]
    return value


def vast(levels=60):
    """2 ** levels values for whoever reads them out."""
    value = ["end"]
    for _ in range(levels):
        value = [value, value]
    return value


HOSTILE = {
    "evil": Evil,
    "quits": Quits,
    "bad mapping": BadMapping,
    "nameless": Nameless,
    "object": object,
    "set": lambda: {1, 2},
    "array": lambda: np.zeros((3, 2)),
    "object array": lambda: np.array([None], dtype=object),
    "complex": lambda: 1 + 2j,
    "function": lambda: deep,
    "class": lambda: dict,
    "generator": lambda: (x for x in ()),
    "enum": lambda: Color.RED,
    "stamp": lambda: np.datetime64("2026-01-01"),
    "cycle": cycle,
    "wide cycle": wide_cycle,
    "deep": deep,
}


@dataclass(frozen=True)
class Bad:
    """Stands for a hostile value while hypothesis looks at it."""

    name: str


def real(value):
    """The value with hostile ones where `Bad` stands."""
    if isinstance(value, Bad):
        return HOSTILE[value.name]()
    if isinstance(value, (list, tuple)):
        return type(value)(map(real, value))
    if isinstance(value, dict):
        return {key: real(item) for key, item in value.items()}
    return value


hostile = st.builds(Bad, st.sampled_from(sorted(HOSTILE)))

# What comes back as the plain value it stands for.
PLAIN = [
    (Text("a"), "a"),
    (Whole(5), 5),
    (Level.LOW, 1),
    (OrderedDict(a=1), {"a": 1}),
    (defaultdict(list, a=[1]), {"a": [1]}),
    (UserDict(a=1), {"a": 1}),
    (BadItems(a=1), {"a": 1}),
    (Point(1, 2.0), (1, 2.0)),
    (bytearray(b"x"), b"x"),
    (np.float32(0.5), 0.5),
    (np.float64(-0.0), -0.0),
    (np.int64(3), 3),
    (np.bool_(1), True),
    (np.str_("s"), "s"),
    (np.array(2.5), 2.5),
    ({np.str_("k"): 1}, {"k": 1}),
    ({Text("k"): 1}, {"k": 1}),
    (date(2026, 1, 2), date(2026, 1, 2)),
    (timedelta(days=-1, microseconds=3), timedelta(days=-1, microseconds=3)),
    (Decimal("NaN"), Decimal("NaN")),
]
