"""Values that a script hands out (its result, the arguments of its calls) → plain JSON values, within caps.

A script may hand out anything: lists nested a hundred thousand deep, NaN, sets, its own objects. One walk turns it
into plain values; it visits no more elements than fit the byte cap and goes no deeper than the depth cap, so its cost
is bounded by the caps and not by what the script built. Objects it does not know are refused by the name of their
type: nothing here calls ``repr`` or any other method of an unknown object.

=========================================  =============================================================
NaN, infinities                            ``null``
bytes                                      ``{"$bytes": "<base64>"}``
tuple, named tuple, deque                  array
set, frozenset                             array, sorted when its elements can be compared
datetime, date, time                       ISO 8601 string
timedelta                                  seconds
Decimal, path                              string
exception                                  string ``Type: text``
object of a class, dataclass               object of its attributes
keys that are no strings                   their text: ``1``, ``true``, ``null``; a tuple's parts joined by ``,``
=========================================  =============================================================
"""

from __future__ import annotations

import base64
import datetime
import json
import math
import re
from collections import deque
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from pathlib import PurePath
from typing import Any

import orjson

from gateway.kernels.base import MAX_DEPTH, MAX_VALUE_BYTES

MAX_INT_BITS = 14_000
"""Python refuses to write integers of more than 4,300 digits, because that takes quadratic time."""

_SMALL_INT = 1_000_000_000

_COROUTINE = re.compile(r"<coroutine (?:object [\w.<>]+|external_future\(\d+\))>")
"""How a coroutine that the script forgot to await leaves monty: as this text, not as an object."""


class EncodingError(ValueError):
    """The value has no JSON form within the caps.

    Attributes:
        too_large: a cap was passed; otherwise the value holds something that JSON cannot say.
        hint: what to do instead.
    """

    def __init__(self, message: str, hint: str, *, too_large: bool = False) -> None:
        super().__init__(message)
        self.hint = hint
        self.too_large = too_large


def to_json(value: Any, max_bytes: int = MAX_VALUE_BYTES) -> bytes:
    """The value as compact JSON, UTF-8.

    A value of a megabyte can take 100 ms: give large ones to a thread.

    Raises:
        EncodingError
    """
    encoded = dump(to_plain(value, max_bytes))
    if len(encoded) > max_bytes:
        raise _too_large(max_bytes, len(encoded))
    return encoded


def dump(plain: Any) -> bytes:
    """Plain values → compact JSON. Halves of surrogate pairs, which UTF-8 cannot hold, become ``?``."""
    try:
        return orjson.dumps(plain)
    except orjson.JSONEncodeError:  # an integer of more than 64 bits, or half a surrogate pair: ten times slower
        pass
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8", "replace")


def to_plain(value: Any, max_bytes: int, max_depth: int = MAX_DEPTH) -> Any:
    """The value built anew from dict, list, str, int, float, bool and None only.

    Args:
        max_bytes: the walk ends when the JSON of what it has seen cannot be smaller than this.
        max_depth: levels of containers.

    Raises:
        EncodingError
    """
    return _Walk(max_bytes, max_depth).plain(value, 0)


def check_plain(value: Any, max_depth: int = MAX_DEPTH) -> None:
    """Make sure that a value for a script is plain JSON and not nested too deeply; does not copy it.

    Raises:
        EncodingError
    """
    level: list[Any] = [value]
    for _ in range(max_depth + 1):
        inner: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                inner.extend(item.values())
            elif kind is list:
                inner.extend(item)
            elif kind not in _SCALARS:
                raise _unknown(item)
        if not inner:
            return
        level = inner
    raise _too_deep(max_depth)


_SCALARS = frozenset({str, int, float, bool, type(None)})


class _Walk:
    """One conversion: the budget that is left, and the containers we are inside of.

    A container pays for all its elements before it looks at the first (one character and a comma each), so an element
    pays only for what it has beyond that: a value of a megabyte may have half a million elements.
    """

    def __init__(self, max_bytes: int, max_depth: int) -> None:
        self._max_bytes = max_bytes
        self._max_depth = max_depth
        self._spent = 0
        self._inside: set[int] = set()

    def plain(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is str:
            return self._text(value)
        if kind is int:
            return value if -_SMALL_INT < value < _SMALL_INT else self._integer(value)
        if value is None or kind is bool:
            return value
        if kind is float:
            return value if math.isfinite(value) else None
        if isinstance(value, Mapping):
            return self._within(value, depth, self._object)
        if isinstance(value, (list, tuple, deque)):
            return self._within(value, depth, self._array)
        if isinstance(value, (set, frozenset)):
            return self._within(value, depth, self._sorted_array)
        return self._rare(value, depth)

    def _text(self, value: str) -> str:
        self._spend(len(value))
        if value.startswith("<coroutine ") and _COROUTINE.fullmatch(value):
            raise EncodingError("the value holds a call that was never awaited", "write `await` before the call")
        return value

    def _integer(self, value: int) -> int:
        if value.bit_length() > MAX_INT_BITS:
            raise EncodingError("the value holds an integer of more than 4,000 digits", "return it as text or rounded")
        self._spend(value.bit_length() // 4)
        return value

    def _array(self, items: Collection[Any], depth: int) -> list[Any]:
        self._spend(2 * len(items))
        return [self.plain(item, depth) for item in items]

    def _sorted_array(self, items: Collection[Any], depth: int) -> list[Any]:
        result = self._array(items, depth)
        try:
            return sorted(result)
        except TypeError:
            return result

    def _object(self, items: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        self._spend(5 * len(items))
        result: dict[str, Any] = {}
        for key, item in items.items():
            name = key if type(key) is str else _key_text(key)
            if name in result:
                raise EncodingError("the value has two keys with the same text", "make the keys distinct strings")
            self._spend(len(name))
            result[name] = self.plain(item, depth)
        return result

    def _within(self, value: Any, depth: int, convert: Callable[[Any, int], Any]) -> Any:
        if depth >= self._max_depth:
            raise _too_deep(self._max_depth)
        if id(value) in self._inside:
            raise EncodingError("the value contains itself", "return plain data without cycles")
        self._inside.add(id(value))
        result = convert(value, depth + 1)
        self._inside.discard(id(value))
        return result

    def _rare(self, value: Any, depth: int) -> Any:
        if isinstance(value, (bytes, bytearray)):
            self._spend(len(value) * 4 // 3 + 13)
            return {"$bytes": base64.b64encode(value).decode("ascii")}
        if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
            return self._text(value.isoformat())
        if isinstance(value, datetime.timedelta):
            return self.plain(value.total_seconds(), depth)
        if isinstance(value, (Decimal, PurePath, datetime.timezone)):
            return self._text(str(value))
        if isinstance(value, BaseException) and type(value).__module__ == "builtins":
            return self._text(f"{type(value).__name__}: {value}")
        if isinstance(value, str):
            return self._text(str.__str__(value))
        if is_proxy(value):
            return self._within(value.attributes, depth, self._object)
        raise _unknown(value)

    def _spend(self, size: int) -> None:
        self._spent += size
        if self._spent > self._max_bytes:
            raise _too_large(self._max_bytes, self._spent)


def is_proxy(value: Any) -> bool:
    """Whether this is how monty hands over an object of a class that the script defined."""
    return type(value).__name__ == "MontyClassProxy" and type(value).__module__.startswith("pydantic_monty")


def _key_text(key: Any) -> str:
    if isinstance(key, tuple):
        return ",".join(_key_text(part) if type(part) is not str else part for part in key)
    if key is None:
        return "null"
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, int) and key.bit_length() > MAX_INT_BITS:
        raise EncodingError("the value has an integer of more than 4,000 digits as a key", "use short keys")
    if isinstance(key, (str, int, float, Decimal, PurePath)):
        return str(key)
    if isinstance(key, (datetime.datetime, datetime.date, datetime.time)):
        return key.isoformat()
    raise _unknown(key)


def _unknown(value: Any) -> EncodingError:
    engine_own = type(value).__module__.startswith("pydantic_monty")
    what = "function or type" if engine_own or isinstance(value, type) else type(value).__name__
    return EncodingError(
        f"the value holds a {what}, which JSON cannot express",
        "return strings, numbers, lists and dicts",
    )


def _too_deep(limit: int) -> EncodingError:
    return EncodingError(f"the value is nested deeper than {limit} levels", "flatten it", too_large=True)


def _too_large(limit: int, reached: int) -> EncodingError:
    return EncodingError(
        f"the value is larger than {limit:,} bytes of JSON (at least {reached:,})",
        "filter or summarise in the script first",
        too_large=True,
    )
