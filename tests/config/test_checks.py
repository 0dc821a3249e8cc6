"""What must fit together: the limits of the rules. Places and sentences are in ``golden/references.yaml``."""

from __future__ import annotations

import pytest

from gateway.config.checks import cross_check
from gateway.config.loader import ConfigError, loads


def messages(text: str) -> list[str]:
    try:
        loads("version: 1\n" + text, "f", {})
    except ConfigError as error:
        return [f"{problem.path}: {problem.message}" for problem in error.problems]
    return []


@pytest.mark.parametrize(
    ("call_timeout", "wall_ms", "fits"),
    [
        ("20s", "20000", True),
        ("20s", "20001", True),
        ("20s", "19999", False),
        ("30s", None, True),
        ("31s", None, False),
    ],
)
def test_an_execution_must_not_end_before_one_call_may(call_timeout: str, wall_ms: str | None, fits: bool) -> None:
    manifest = f"{{wallMs: {wall_ms}}}" if wall_ms else "{}"
    text = f"""
upstreams: {{a: {{command: x, callTimeout: {call_timeout}}}}}
tenants: {{t: {{upstreams: {{a: ["*"]}}, manifest: {manifest}}}}}
"""
    assert (messages(text) == []) == fits


def test_the_default_kernel_must_exist_for_those_who_run_scripts() -> None:
    kernels = "upstreams: {}\nkernels: {js: {engine: quickjs}}\n"
    assert messages(kernels + "tenants: {t: {upstreams: {}}}") == [
        "tenants.t.kernel: there is no kernel python, which is the default; known: js"
    ]
    assert messages(kernels + "tenants: {t: {upstreams: {}, mode: direct}}") == []
    assert messages(kernels + "tenants: {t: {upstreams: {}, kernel: js}}") == []


def test_names_that_differ_in_case_are_different() -> None:
    assert messages("upstreams: {a-b: {command: x}, A_b: {command: x}}\ntenants: {}") == []


def test_a_name_that_was_lost_to_another_mistake_is_not_missed() -> None:
    text = "upstreams: {on: {command: x}}\ntenants: {t: {upstreams: {'on': ['*']}}}"
    assert [message.partition(":")[0] for message in messages(text)] == ["upstreams.on"]


@pytest.mark.parametrize(
    "data", [None, [], {}, {"tenants": 1}, {"tenants": {"t": 1}}, {"tenants": {"t": {"manifest": 1}}}]
)
def test_what_has_the_wrong_shape_is_passed_over(data: object) -> None:
    assert [finding for finding in cross_check(data) if "kernel" not in finding.loc] == []
