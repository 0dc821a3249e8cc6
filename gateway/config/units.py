"""Durations and sizes as people write them: ``250ms``, ``30s``, ``5m``; ``65536``, ``64MiB``.

Both become plain numbers (seconds, bytes) at the border, so that nothing inside the house parses text again.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

_DURATION = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{1,9})?)(?P<unit>ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_SIZE = re.compile(r"(?P<number>[0-9]{1,15})(?P<unit>B|KiB|MiB|GiB|)")
_BYTES = {"": 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


def parse_duration(value: Any) -> Any:
    """``"250ms"`` → 0.25 seconds. A bare number is refused: nobody can tell whether it means seconds or milliseconds.

    Raises:
        ValueError: the text is not a number with one of the units ms, s, m, h, d.
    """
    if isinstance(value, str) and (found := _DURATION.fullmatch(value)):
        return float(found["number"]) * _SECONDS[found["unit"]]
    raise ValueError("must be a duration such as 250ms, 30s or 5m")


def parse_size(value: Any) -> Any:
    """``"64MiB"`` or a whole number of bytes, also as text (from a variable) → bytes.

    Raises:
        ValueError: neither.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and (found := _SIZE.fullmatch(value)):
        return int(found["number"]) * _BYTES[found["unit"]]
    raise ValueError("must be a number of bytes, or a size such as 64KiB or 64MiB")


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    Field(gt=0),
    WithJsonSchema({"type": "string", "pattern": "^[0-9]{1,9}([.][0-9]{1,9})?(ms|s|m|h|d)$"}),
]
"""Seconds; in the file ``250ms``, ``30s``, ``5m``."""

ByteSize = Annotated[
    int,
    BeforeValidator(parse_size),
    Field(gt=0),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "exclusiveMinimum": 0},
                {"type": "string", "pattern": "^[0-9]{1,15}(B|KiB|MiB|GiB)$"},
            ]
        }
    ),
]
"""Bytes; in the file ``65536`` or ``64MiB``."""
