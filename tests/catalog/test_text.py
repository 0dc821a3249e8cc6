"""Text of strangers becomes one line that holds nothing unseen."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.catalog.text import first_sentence, one_line, unseen


@pytest.mark.case("SCHEMAS-07")
@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("two\nlines\r\n\tand\u2028a third\u2029one\x85end", "two lines and a third one end"),
        ("\x1b[31mred\x1b[0m \x1b[2Jtext", "red text"),
        ("right\u202eto\u2066left", "righttoleft"),
        ("zero\u200bwidth\ufeff", "zerowidth"),
        ("tag\U000e0068\U000e0069ged\U000e007f", "tagged"),
        ("filler\u3164\u115f blank\u2800", "filler blank"),
        ("variation\ufe0f\U000e0101", "variation"),
        ("private\ue000 lone\ud800", "private lone"),
        ("nul\x00 bell\x07", "nul bell"),
        ("Größe 大小 Размер", "Größe 大小 Размер"),
        (None, ""),
        (5, "5"),
    ],
)
def test_what_a_reader_does_not_see_goes(sent: Any, shown: str) -> None:
    assert one_line(sent) == shown


def test_long_text_is_cut_at_a_word_and_says_so() -> None:
    assert one_line("a long description of it", 22) == "a long description…"
    assert one_line("x" * 100, 10) == "x" * 9 + "…"
    assert one_line("fits", 4) == "fits"


def test_the_first_sentence_ends_at_a_full_stop_before_a_space() -> None:
    assert first_sentence("Reads v1.2 of it. Then more.") == "Reads v1.2 of it."
    assert first_sentence("No full stop\nhere") == "No full stop here"
    assert len(first_sentence("word " * 100_000)) <= 160


def test_ordinary_typography_is_nothing_unseen() -> None:
    assert unseen("“Quotes” – dashes… 👩‍💻 ✔️ naïve") == 0
    assert unseen("a\u202eb\u200bc") == 2


@given(st.text(), st.none() | st.integers(1, 50))
def test_any_text_becomes_one_clean_line_within_its_limit(text: str, limit: int | None) -> None:
    line = one_line(text, limit)
    assert line == line.strip()
    assert limit is None or len(line) <= limit
    assert not any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") for char in line)
    assert len(line.splitlines()) <= 1
