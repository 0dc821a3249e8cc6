"""Reading the command line: values, limits, refusals."""

import pytest

from tests.faulty.faults import Fault, size
from tests.faulty.recording import Record
from tests.faulty.switches import BadSwitch, parse, usage


@pytest.mark.parametrize(
    ("limits", "fires"),
    [
        ("", [1, 2, 3, 4, 5, 6]),
        (":after=3", [3, 4, 5, 6]),
        (":times=2", [1, 2]),
        (":every=2", [2, 4, 6]),
        (":after=3,times=2", [3, 4]),
        (":every=2,times=2", [2, 4]),
    ],
)
def test_limits_choose_the_times_a_fault_happens(limits: str, fires: list[int]) -> None:
    (fault,) = parse(["--hang", f"call{limits}"]).hang
    assert [number for number in range(1, 7) if fault.fires(number)] == fires


def test_a_limit_names_tool_and_point() -> None:
    switches = parse(["--result", "huge:1KiB:tool=echo,times=1", "--reply", "malformed:point=list"])
    assert switches.result == (Fault("huge", "1KiB", "call", tool="echo", times=1),)
    assert switches.reply == (Fault("malformed", "", "list"),)


def test_only_requests_that_concern_a_fault_are_counted() -> None:
    record, switches = Record(), parse(["--error", "-1:no:tool=echo,times=1"])
    asked = [record.plan(switches, frozenset({"call"}), tool).first("error") for tool in ("add", "echo", "echo")]
    assert [fault is not None for fault in asked] == [False, True, False]


def test_a_status_is_written_as_point_and_code() -> None:
    (fault,) = parse(["--status", "list=429:times=2,retry-after=3"]).status
    assert (fault.point, fault.kind, fault.times, fault.retry_after) == ("list", "429", 2, "3")
    (fault,) = parse(["--status", "call=503,retry-after=60"]).status
    assert (fault.point, fault.kind, fault.retry_after) == ("call", "503", "60")


def test_the_k_th_call_is_where_it_dies() -> None:
    (fault,) = parse(["--die-on", "call:3"]).die_on
    assert [fault.fires(number) for number in (1, 2, 3)] == [False, False, True]


def test_sizes() -> None:
    assert [size(text) for text in ("7", "64KiB", "300MB", "2GiB")] == [7, 65536, 300_000_000, 2 << 30]


@pytest.mark.parametrize(
    "words",
    [
        ["--bogus"],
        ["hang"],
        ["--tools", "many"],
        ["--hang", "nowhere"],
        ["--hang", "call:after=0"],
        ["--status", "call"],
        ["--result", "huge"],
        ["--result", "huge:big"],
        ["--notify", "ping"],
        ["--ignore-sigterm", "yes"],
        ["--reply", "dup:point=nowhere"],
    ],
)
def test_what_it_does_not_understand_it_refuses(words: list[str]) -> None:
    with pytest.raises(BadSwitch):
        parse(words)


def test_help_names_every_switch() -> None:
    assert {"--http PORT", "--reply-id string|null|zero", "--log-calls FILE"} <= {
        line.strip() for line in usage().splitlines()
    }
