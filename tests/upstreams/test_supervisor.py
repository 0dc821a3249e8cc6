"""One upstream over its whole life: started, listed, called, lost, found again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from gateway.config.model import HttpUpstream, StdioUpstream
from gateway.errors import ErrorClass, GatewayError
from gateway.upstreams import child as child_module
from gateway.upstreams import supervisor as supervisor_module
from gateway.upstreams.base import InputRequired, UpstreamFailed, UpstreamTimedOut
from gateway.upstreams.supervisor import Upstream
from tests.companions import eventually, faulty_http, free_port
from tests.upstreams.support import logged, points, reached, running, state_of, stdio


@pytest.fixture(autouse=True)
def short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "GRACE_S", 0.3)
    monkeypatch.setattr(supervisor_module, "DEBOUNCE_S", 0.02)


async def call(upstream: Upstream, tool: str, timeout_s: float = 15.0, **arguments: Any) -> Any:
    result = await upstream.call_tool(tool, json.dumps(arguments).encode(), timeout_s)
    return json.loads(result.structured or b"null")


# ------------------------------------------------------------------ reading the list


@pytest.mark.case("CATALOG-01")
async def test_all_pages_are_read() -> None:
    async with running({"u": stdio("--tools", "500", "--pages", "10")}) as ups:
        await state_of(ups["u"], "ready")
        assert ups["u"].status.tools == len(ups["u"].tools) == 507
        assert not (await ups["u"].call_tool(ups["u"].tools[-1].name, b"")).is_error


@pytest.mark.case("CATALOG-11")
@pytest.mark.parametrize("cursor", ["unicode", "empty"])
async def test_strange_cursors_are_sent_back_as_they_came(cursor: str) -> None:
    async with running({"u": stdio("--tools", "20", "--cursor", cursor)}) as ups:
        await state_of(ups["u"], "ready", "down")
        assert ups["u"].status.tools == 27


async def test_a_list_that_goes_round_in_a_circle_is_an_error() -> None:
    async with running({"u": stdio("--tools", "20", "--cursor", "repeat")}) as ups:
        await state_of(ups["u"], "down")
        assert (ups["u"].status.stage, "cursor came twice" in ups["u"].status.reason) == ("list", True)


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_new_tool_appears_and_is_announced_once(transport: str) -> None:
    changes: list[tuple[str, int]] = []
    async with faulty_http("--add-tool-after", "0.3") as fu:
        config = stdio("--add-tool-after", "0.3") if transport == "stdio" else HttpUpstream(url=fu.url)
        async with running({"u": config}, lambda u: changes.append((u.status.state, len(u.tools)))) as ups:
            await eventually(lambda: ups["u"].status.tools == 8)
    assert changes == [("ready", 7), ("ready", 8), ("stopped", 8)] or changes == [("ready", 8), ("stopped", 8)]


@pytest.mark.case("CATALOG-02")
async def test_a_list_that_cannot_be_read_again_leaves_the_last_one_in_place() -> None:
    async with faulty_http() as fu, running({"u": HttpUpstream(url=fu.url)}) as ups:
        await state_of(ups["u"], "ready")
        await reached(fu, lambda state: state["requests"].get("listen"))
        await fu.control.set(status="list=500")
        await fu.control.now(notify="list_changed")
        await state_of(ups["u"], "degraded")
        assert (ups["u"].status.stage, ups["u"].status.reason) == ("http", "HTTP 500 to tools/list")
        assert len(ups["u"].tools) == ups["u"].status.tools == 7
        assert await call(ups["u"], "echo", a=1) == {"a": 1}
        await fu.control.set(status=None)
        await state_of(ups["u"], "ready")  # by itself


@pytest.mark.case("UPSTREAMS-12")
async def test_a_credential_that_is_no_longer_accepted_is_not_an_empty_list() -> None:
    credentials = {"Authorization": "a"}
    async with (
        faulty_http("--require-auth", "a") as fu,
        running({"u": HttpUpstream(url=fu.url, headers=credentials)}) as ups,
    ):
        await state_of(ups["u"], "ready")
        await fu.control.set(require_auth="b")
        with pytest.raises(UpstreamFailed, match="HTTP 401"):
            await call(ups["u"], "echo")
        await state_of(ups["u"], "down")
        assert "HTTP 401" in ups["u"].status.reason
        assert len(ups["u"].tools) == 7
        await fu.control.set(require_auth="a")
        await state_of(ups["u"], "ready")


# ------------------------------------------------------------------ calls


async def test_arguments_and_results_travel_byte_for_byte(tmp_path: Path) -> None:
    log = tmp_path / "log"
    arguments = b'{"n": 12345678901234567890123,\n "f": 1.0, "s": "\\u00e9\xc3\xa9"}'
    async with running({"u": stdio("--log-calls", str(log))}) as ups:
        result = await ups["u"].call_tool("echo", arguments, meta={"traceparent": "00-1"})

    assert result.structured == arguments.replace(b"\n", b" ")
    assert logged(log)[-1]["arguments"] == arguments.replace(b"\n", b" ").decode()


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_wish_for_input_becomes_an_error_of_the_tool(transport: str) -> None:
    async with faulty_http("--era", "modern", "--ask", "elicitation") as fu:
        config = stdio("--era", "modern", "--ask", "elicitation") if transport == "stdio" else HttpUpstream(url=fu.url)
        async with running({"u": config}) as ups:
            with pytest.raises(InputRequired, match="elicitation/create") as caught:
                await call(ups["u"], "echo")
    assert caught.value.error_class is ErrorClass.TOOL_ERROR


async def test_a_call_waits_for_the_first_start_but_not_for_long() -> None:
    async with running({"slow": stdio("--init-delay", "0.3"), "never": stdio("--hang", "discover,point=init")}) as ups:
        assert await call(ups["slow"], "echo", a=1) == {"a": 1}
        with pytest.raises(UpstreamFailed, match="it is still starting") as caught:
            await call(ups["never"], "echo", 0.2)
        assert not caught.value.delivered


@pytest.mark.case("CATALOG-04")
async def test_a_call_to_an_upstream_that_is_down_fails_at_once_and_says_why_and_until_when() -> None:
    config = HttpUpstream(url=f"http://127.0.0.1:{free_port()}/mcp")
    async with running({"u": config}) as ups:
        await eventually(lambda: (ups["u"].status.retry_at or 0) > 0)
        with pytest.raises(UpstreamFailed, match=r"\(connect\): the connection was refused; ") as caught:
            await call(ups["u"], "echo")
        assert caught.value.retry_after_s is not None
        assert not caught.value.delivered


# ------------------------------------------------------------------ lost and found


@pytest.mark.case("UPSTREAMS-05")
async def test_a_crash_during_a_call_costs_that_call_only(tmp_path: Path) -> None:
    log = tmp_path / "log"
    control = free_port()
    config = stdio("--die-on", "call:3", "--log-calls", str(log), "--control", str(control))
    async with running({"u": config}) as ups:
        for n in (1, 2):
            assert await call(ups["u"], "echo", n=n) == {"n": n}
        async with asyncio.timeout(5):
            with pytest.raises(UpstreamFailed, match="outcome is unknown") as caught:
                await call(ups["u"], "put", 30, key="k", value=1)
        assert (caught.value.stage, caught.value.delivered) == ("exit", True)
        for n in (4, 5):
            assert await call(ups["u"], "echo", n=n) == {"n": n}
        assert ups["u"].status.restarts == 1
    assert [line["tool"] for line in logged(log) if line["point"] == "call"] == ["echo", "echo", "put", "echo", "echo"]


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_killed_during_calls_it_fails_them_all_at_once_and_comes_back(transport: str) -> None:
    port = free_port()
    async with faulty_http(port=port) as fu:
        config: StdioUpstream | HttpUpstream = stdio() if transport == "stdio" else HttpUpstream(url=fu.url)
        async with running({"u": config}) as ups:
            pid = fu.process.pid
            if transport == "stdio":
                pid = (await call(ups["u"], "whoami"))["pid"]
            calls = [asyncio.create_task(call(ups["u"], "sleep", 30, ms=20000)) for _ in range(3)]
            await call(ups["u"], "echo")
            psutil.Process(pid).kill()
            async with asyncio.timeout(5):
                failures = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(failure, UpstreamFailed) and failure.delivered for failure in failures)
            if transport == "http":
                await state_of(ups["u"], "down")  # noticed without a further call
                async with faulty_http(port=port):
                    await state_of(ups["u"], "ready", within_s=10)
                    assert await call(ups["u"], "echo", a=1) == {"a": 1}
            else:
                assert await call(ups["u"], "echo", a=1) == {"a": 1}
            assert ups["u"].status.restarts >= 1


@pytest.mark.case("CATALOG-03")
async def test_the_tools_of_an_upstream_that_is_down_stay_known() -> None:
    port = free_port()
    async with faulty_http(port=port) as fu, running({"u": HttpUpstream(url=fu.url)}) as ups:
        await state_of(ups["u"], "ready")
        fu.process.kill()
        await state_of(ups["u"], "down")
        assert len(ups["u"].tools) == 7
        async with asyncio.timeout(5):
            with pytest.raises(UpstreamFailed):
                await call(ups["u"], "echo", 30)
        async with faulty_http("--tools", "1", port=port):
            await state_of(ups["u"], "ready", within_s=10)
            assert len(ups["u"].tools) == 8


@pytest.mark.case("UPSTREAMS-06")
async def test_a_server_that_exits_at_once_is_started_again_with_pauses_and_comes_back(tmp_path: Path) -> None:
    more = tmp_path / "switches"
    more.write_text("--die-on\nstart\n--exit-code\n3\n")
    async with running({"bad": stdio("--switches", str(more)), "good": stdio()}) as ups:
        await eventually(lambda: ups["bad"].status.restarts >= 1)
        assert (ups["bad"].status.state, ups["bad"].status.stage) == ("down", "exit")
        assert ups["bad"].status.reason == "it exited with code 3"
        descriptors = psutil.Process().num_fds()
        await eventually(lambda: ups["bad"].status.restarts >= 2)
        assert psutil.Process().num_fds() <= descriptors + 4
        assert await call(ups["good"], "echo", a=1) == {"a": 1}
        more.unlink()
        await state_of(ups["bad"], "ready", within_s=10)


@pytest.mark.case("STARTUP-06")
@pytest.mark.parametrize(("before", "after"), [("modern", "legacy"), ("legacy", "modern")])
async def test_a_server_of_the_other_era_behind_the_same_url_is_found_again(before: str, after: str) -> None:
    async with faulty_http("--era", before) as fu, running({"u": HttpUpstream(url=fu.url)}) as ups:
        await state_of(ups["u"], "ready")
        assert ups["u"].status.era == before
        await fu.control.set(era=after)
        with pytest.raises(GatewayError):
            await call(ups["u"], "echo")
        await eventually(lambda: ups["u"].status.era == after)
        assert await call(ups["u"], "echo", a=1) == {"a": 1}


@pytest.mark.case("STARTUP-05")
async def test_a_rate_limit_at_the_start_is_respected() -> None:
    limited = "list=429:times=1,retry-after=2"
    async with faulty_http("--status", limited) as fu, running({"u": HttpUpstream(url=fu.url)}) as ups:
        await state_of(ups["u"], "down")
        status = ups["u"].status
        assert status.reason == "HTTP 429 to tools/list"
        assert (status.retry_at or 0) - status.since > 1.9
        with pytest.raises(UpstreamFailed):
            await call(ups["u"], "echo")
        await state_of(ups["u"], "ready")
        assert (await fu.control.state())["requests"]["list"] == 2


@pytest.mark.case("SESSIONS-07")
async def test_many_callers_of_an_upstream_that_restarts_cause_one_reconnect() -> None:
    port = free_port()
    async with faulty_http(port=port) as fu, running({"u": HttpUpstream(url=fu.url)}) as ups:
        await state_of(ups["u"], "ready")
        fu.process.kill()
        await fu.process.wait()
        async with faulty_http(port=port) as again:

            async def caller() -> None:
                for _ in range(10):
                    with_failure = await asyncio.gather(call(ups["u"], "echo"), return_exceptions=True)
                    assert all(isinstance(one, (UpstreamFailed, dict)) or one is None for one in with_failure)

            await asyncio.gather(*(caller() for _ in range(50)))
            await state_of(ups["u"], "ready")
            assert (await again.control.state())["handshakes"].get("discover", 0) <= 1


async def test_the_end_of_stderr_can_be_read_while_it_runs_and_after_its_death() -> None:
    async with running({"u": stdio("--stderr-flood", "10kB:times=1")}) as ups:
        await call(ups["u"], "echo")
        await eventually(ups["u"].stderr_tail)


async def test_one_that_never_answers_its_list_is_reported_with_the_deadline(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with running({"u": stdio("--hang", "list", "--log-calls", str(log), list_timeout="300ms")}) as ups:
        await state_of(ups["u"], "down")
        assert (ups["u"].status.stage, ups["u"].status.reason) == ("list", "no answer to tools/list within 0.3 s")
        with pytest.raises((UpstreamFailed, UpstreamTimedOut)):
            await call(ups["u"], "echo")
    assert points(log).count("discover") <= 2
