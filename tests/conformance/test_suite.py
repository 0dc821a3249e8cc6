"""What the suite prints becomes a verdict, and nothing that is wrong becomes a green one."""

from __future__ import annotations

import pytest

from tests.conformance.suite import Verdict, read_lists

OUTPUT = """
=== SUMMARY ===
✓ ping: 2 passed, 0 failed
✗ tools-list: 1 passed, 1 failed

Total: 3 passed, 1 failed

Expected failures (in baseline):
  ~ caching:prompts
  ~ completion-complete

Stale baseline entries (now passing - remove from baseline):
  ✓ ping

Unexpected failures (not in baseline):
  ✗ tools-list

Baseline is stale: update your expected-failures file to remove passing entries.
  ✗ not an entry
"""


def test_the_lists_at_the_end_are_read_and_nothing_else() -> None:
    assert read_lists(OUTPUT) == {
        "expected": {"caching:prompts", "completion-complete"},
        "stale": {"ping"},
        "unexpected": {"tools-list"},
    }


@pytest.mark.parametrize(
    ("verdict", "problem"),
    [
        (Verdict(unexpected=frozenset({"a"}), exit_code=1), "fails and is not expected to: a"),
        (Verdict(stale=frozenset({"a"}), exit_code=1), "passes and is still in the baseline: a"),
        (Verdict(exit_code=1, output="no such file"), "the suite ended with exit code 1: no such file"),
        (Verdict(exit_code=-9), "the suite ended with exit code -9: "),
    ],
)
def test_what_is_wrong_is_told(verdict: Verdict, problem: str) -> None:
    assert verdict.problems() == [problem]


def test_a_crash_beside_a_green_run_is_still_a_crash() -> None:
    assert (Verdict(frozenset({"a"})) | Verdict(exit_code=-9)).problems()


def test_what_is_run_again_leaves_no_trace() -> None:
    both = Verdict(frozenset({"a"}), frozenset({"c"}), frozenset({"b:check", "d"}), exit_code=1)
    assert both.without({"b"}) == Verdict(frozenset({"a"}), frozenset({"c"}), frozenset({"d"}), exit_code=1)
    assert not both.without({"b", "d"}).problems()
    assert Verdict(exit_code=1).without({"a"}).problems(), "it failed for another reason"
