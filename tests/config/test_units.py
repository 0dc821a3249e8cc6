"""Durations and sizes."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.units import parse_duration, parse_size


@pytest.mark.parametrize(("text", "seconds"), [("250ms", 0.25), ("30s", 30), ("1.5m", 90), ("2h", 7200), ("1d", 86400)])
def test_durations_are_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "value", [30, 1.5, True, None, "", "30", "s", "-1s", "1 s", "1S", "1e3s", "1s1", "٣s", "9" * 10 + "s"]
)
def test_a_duration_without_unit_or_with_another_form_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        parse_duration(value)


@pytest.mark.parametrize(
    ("value", "size"), [(7, 7), ("7", 7), ("7B", 7), ("2KiB", 2048), ("1MiB", 1 << 20), ("1GiB", 1 << 30)]
)
def test_sizes_are_bytes(value: Any, size: int) -> None:
    assert parse_size(value) == size


@pytest.mark.parametrize("value", [1.5, True, None, "", "MiB", "1MB", "1 MiB", "-1", "1.5MiB", "9" * 16])
def test_a_size_of_another_form_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="must be a number of bytes"):
        parse_size(value)
