"""The metrics page: complete from the first scrape, bounded whatever clients send, and off the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from prometheus_client import REGISTRY
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

import gateway
from gateway.errors import ErrorClass
from gateway.metering.metrics import Metrics
from gateway.metering.parts import Tokens

OPENMETRICS = "application/openmetrics-text; version=1.0.0,text/plain;q=0.5"
EXPECTED = {
    "mcp_gateway_context_tokens_total": {"tenant", "mode", "part"},
    "mcp_gateway_tools_list_tokens": {"tenant", "mode"},
    "mcp_gateway_requests_total": {"tenant", "tool", "outcome"},
    "mcp_gateway_hidden_tokens_total": {"tenant"},
    "mcp_gateway_executions_total": {"kernel", "outcome"},
    "mcp_gateway_execution_seconds_count": {"kernel"},
    "mcp_gateway_kernel_workers": {"kernel", "state"},
    "mcp_gateway_upstream_up": {"upstream"},
    "mcp_gateway_upstream_calls_total": {"upstream", "outcome"},
    "mcp_gateway_upstream_restarts_total": {"upstream"},
    "mcp_gateway_upstream_tools": {"upstream"},
    "mcp_server_operation_duration_seconds_count": {
        "mcp_method_name",
        "gen_ai_tool_name",
        "error_type",
        "network_transport",
        "mcp_protocol_version",
    },
    "mcp_client_operation_duration_seconds_count": {"upstream", "mcp_method_name", "error_type"},
    "mcp_gateway_rejections_total": {"tenant", "reason"},
    "mcp_gateway_config_last_reload_successful": set(),
    "mcp_gateway_ledger_dropped_rows_total": set(),
    "mcp_gateway_event_loop_lag_seconds": set(),
    "mcp_gateway_metering_degraded_total": set(),
    "mcp_gateway_build_info": {"version", "python", "mcp"},
}

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(metrics: Metrics) -> Samples:
    page, _ = metrics.render()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse_text(page.decode())
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


@pytest.fixture
def metrics() -> Metrics:
    table = Metrics()
    table.configure(tenants=["acme", "zoo"], upstreams=["time", "files"], kernels=["python"])
    return table


@pytest.mark.case("METRICS-07")
def test_every_metric_is_there_with_its_labels_before_anything_has_happened(metrics: Metrics) -> None:
    samples = scrape(metrics)
    found = {name: {label for label, _ in labels} for name, labels in samples}
    assert {name: found.get(name) for name in EXPECTED} == EXPECTED
    for part in ("tools_list", "docs", "call", "result"):
        for mode in ("code", "direct"):
            assert value(samples, "mcp_gateway_context_tokens_total", tenant="acme", mode=mode, part=part) == 0
    assert value(samples, "mcp_gateway_requests_total", tenant="zoo", tool="execute_code", outcome="ok") == 0
    assert value(samples, "mcp_gateway_executions_total", kernel="python", outcome="KERNEL_CRASHED") == 0
    assert value(samples, "mcp_gateway_upstream_up", upstream="time") == 0
    assert value(samples, "mcp_gateway_kernel_workers", kernel="python", state="busy") == 0
    assert value(samples, "mcp_gateway_config_last_reload_successful") == 1


def test_nothing_that_no_one_configured_looks_like_an_upstream_that_is_down(metrics: Metrics) -> None:
    upstreams = {dict(labels)["upstream"] for name, labels in scrape(metrics) if name == "mcp_gateway_upstream_up"}
    assert upstreams == {"time", "files"}


def test_the_build_is_named(metrics: Metrics) -> None:
    (labels,) = [dict(labels) for name, labels in scrape(metrics) if name == "mcp_gateway_build_info"]
    assert labels["version"] == gateway.__version__
    assert all(labels.values())


def test_the_tokens_of_a_request_go_into_both_arms_and_negative_savings_stay_visible(metrics: Metrics) -> None:
    tokens = Tokens(
        code_docs_query=3, code_docs=40, code_call=20, code_result=5, direct_call=6, direct_result=9, hidden=15
    )
    metrics.tenant("acme").request("execute_code", "ok", tokens)
    metrics.tenant("acme").set_list_tokens(code=230, direct=9000)
    samples = scrape(metrics)

    def context(mode: str, part: str) -> float:
        return value(samples, "mcp_gateway_context_tokens_total", tenant="acme", mode=mode, part=part)

    assert [context("code", part) for part in ("tools_list", "docs", "call", "result")] == [0, 43, 20, 5]
    assert [context("direct", part) for part in ("tools_list", "docs", "call", "result")] == [0, 0, 6, 9]
    assert value(samples, "mcp_gateway_hidden_tokens_total", tenant="acme") == 15
    assert value(samples, "mcp_gateway_requests_total", tenant="acme", tool="execute_code", outcome="ok") == 1
    assert value(samples, "mcp_gateway_tools_list_tokens", tenant="acme", mode="direct") == 9000
    assert value(samples, "mcp_gateway_context_tokens_total", tenant="zoo", mode="code", part="docs") == 0


@pytest.mark.case("METRICS-06")
def test_the_help_says_what_is_counterfactual_and_how_a_definition_counts(metrics: Metrics) -> None:
    page = metrics.render()[0].decode()
    (line,) = [line for line in page.splitlines() if line.startswith("# HELP mcp_gateway_context_tokens_total")]
    assert "counterfactual" in line
    assert "compact JSON of its name, description and inputSchema" in line
    assert "may be negative" in line


@pytest.mark.case("METRICS-01")
@pytest.mark.case("METRICS-03")
def test_upstream_calls_are_counted_by_outcome_and_timed(metrics: Metrics) -> None:
    outcomes = ["ok", "TOOL_ERROR", "rpc_error", "UPSTREAM_TIMEOUT", "UPSTREAM_UNAVAILABLE"]
    for outcome in outcomes:
        metrics.observe_call("time", outcome, 0.3)
    samples = scrape(metrics)
    for outcome in outcomes:
        assert value(samples, "mcp_gateway_upstream_calls_total", upstream="time", outcome=outcome) == 1
    timed = {
        dict(labels)["error_type"]: count
        for (name, labels), count in samples.items()
        if name == "mcp_client_operation_duration_seconds_count" and dict(labels)["upstream"] == "time"
    }
    assert timed == dict.fromkeys(["", "tool_error", "rpc_error", "UPSTREAM_TIMEOUT", "UPSTREAM_UNAVAILABLE"], 1)


@pytest.mark.case("METRICS-03")
def test_only_the_gateways_own_faults_are_errors_of_requests(metrics: Metrics) -> None:
    for outcome in ("KERNEL_CRASHED", "KERNEL_UNAVAILABLE", "error", "TOOL_ERROR", "UPSTREAM_TIMEOUT", "CPU_LIMIT"):
        metrics.tenant("acme").request("execute_code", outcome)
    samples = scrape(metrics)
    for outcome, expected in {"error": 3, "TOOL_ERROR": 1, "UPSTREAM_TIMEOUT": 1, "CPU_LIMIT": 1}.items():
        labels = {"tenant": "acme", "tool": "execute_code", "outcome": outcome}
        assert value(samples, "mcp_gateway_requests_total", **labels) == expected


def test_the_other_events(metrics: Metrics) -> None:
    metrics.tenant("zoo").reject(ErrorClass.RATE_LIMITED)
    metrics.tenant("unknown").reject("unauthenticated")
    metrics.upstream("time").set_state(up=True, tools=12)
    metrics.upstream("time").restarted()
    metrics.kernel("python").executed(ErrorClass.CPU_LIMIT, 0.2)
    metrics.kernel("python").set_workers(idle=3, busy=5)
    metrics.config_reloaded(False)
    metrics.ledger_dropped(4)
    metrics.metering_degraded(2)
    metrics.set_metering_exact(True)
    samples = scrape(metrics)
    assert value(samples, "mcp_gateway_rejections_total", tenant="zoo", reason="RATE_LIMITED") == 1
    assert value(samples, "mcp_gateway_rejections_total", tenant="_OTHER", reason="unauthenticated") == 1
    assert value(samples, "mcp_gateway_upstream_up", upstream="time") == 1
    assert value(samples, "mcp_gateway_upstream_tools", upstream="time") == 12
    assert value(samples, "mcp_gateway_upstream_restarts_total", upstream="time") == 1
    assert value(samples, "mcp_gateway_executions_total", kernel="python", outcome="CPU_LIMIT") == 1
    assert value(samples, "mcp_gateway_execution_seconds_count", kernel="python") == 1
    assert value(samples, "mcp_gateway_kernel_workers", kernel="python", state="busy") == 5
    assert value(samples, "mcp_gateway_config_last_reload_successful") == 0
    assert value(samples, "mcp_gateway_ledger_dropped_rows_total") == 4
    assert value(samples, "mcp_gateway_metering_degraded_total") == 2
    assert value(samples, "mcp_gateway_metering_exact") == 1


# ---- labels ----------------------------------------------------------------------------------------------------------


@pytest.mark.case("METRICS-05")
def test_hostile_names_make_no_series_and_a_loaded_gateway_stays_within_the_budget() -> None:
    metrics = Metrics()
    tenants = [f"tenant-{number}" for number in range(20)]
    upstreams = [f"upstream-{number}" for number in range(30)]
    metrics.configure(tenants=tenants, upstreams=upstreams, kernels=["python", "javascript"])
    methods = ["tools/call", "tools/list", "initialize", "ping", "server/discover", "resources/read"]
    errors = ["", "tool_error", "CPU_LIMIT", "-32601", "internal", "429"]
    versions = ["2024-11-05", "2025-06-18", "2025-11-25", "2026-07-28"]
    for number in range(300):
        evil = f'evil-{number}"\n}}'
        for tenant in (*tenants, evil):
            metrics.tenant(tenant).request(evil, evil, Tokens(code_call=1))
            metrics.tenant(tenant).reject(evil)
        for upstream in (*upstreams, evil):
            metrics.observe_call(upstream, evil, 0.1)
            metrics.observe_client(upstream, methods[number % 6], errors[number % 5], 0.1)
        metrics.kernel(evil).executed(evil, 0.1)
        metrics.observe_server(evil, evil, evil, 0.1, tool=evil, trace_id=evil * 20)
        for version in versions:
            tool = ("docs_search", "execute_code", evil)[number % 3]
            metrics.observe_server(methods[number % 6], errors[number // 6 % 6], version, 0.1, tool=tool)
    samples = scrape(metrics)
    assert len(samples) < 6_000
    assert not [labels for _, labels in samples if any("evil" in text for _, text in labels)]
    assert not [labels for _, labels in samples if {"tenant", "gen_ai_tool_name"} <= {name for name, _ in labels}]


def test_more_label_sets_than_the_bound_are_counted_under_other(metrics: Metrics) -> None:
    for method in ("tools/call", "tools/list", "ping", "initialize", "prompts/list"):
        for error in ("", "400", "401", "403", "404", "405", "406", "413", "415", "429", "internal"):
            for version in ("2024-11-05", "2025-03-26"):
                metrics.observe_server(method, error, version, 0.1)
    counts = {
        labels: count
        for (name, labels), count in scrape(metrics).items()
        if name == "mcp_server_operation_duration_seconds_count"
    }
    assert len(counts) <= 65
    assert sum(counts.values()) == 5 * 11 * 2


@pytest.mark.case("METRICS-06")
@pytest.mark.parametrize("parse_as", ["text", "openmetrics"])
def test_special_characters_in_names_survive_in_both_formats(parse_as: str) -> None:
    names = ['quo"te', "back\\slash", "new\nline", "emoji 🦊", "{brace}, comma"]
    metrics = Metrics()
    metrics.configure(tenants=names, upstreams=names, kernels=["python"])
    metrics.observe_server(
        "tools/call", "", "2026-07-28", 0.1, tool="docs_search", trace_id="4bf92f3577b34da6a3ce929d0e0e4736"
    )
    page, content_type = metrics.render(OPENMETRICS if parse_as == "openmetrics" else "")
    parse: Any = parse_openmetrics if parse_as == "openmetrics" else parse_text
    families = list(parse(page.decode()))
    assert content_type.startswith("application/openmetrics-text" if parse_as == "openmetrics" else "text/plain")
    for label in ("tenant", "upstream"):
        found = {sample.labels[label] for family in families for sample in family.samples if label in sample.labels}
        assert found == {*names, "_OTHER"}
    counters = [sample.name for family in families if family.type == "counter" for sample in family.samples]
    assert all(name.endswith("_total") for name in counters)
    assert b"_created" not in page
    assert (b"4bf92f3577b34da6a3ce929d0e0e4736" in page) == (parse_as == "openmetrics")


def test_a_reload_keeps_what_stays_drops_what_is_gone_and_adds_what_is_new(metrics: Metrics) -> None:
    metrics.tenant("acme").request("direct", "ok")
    metrics.observe_call("time", "ok", 0.1)
    metrics.upstream("time").set_state(up=True, tools=3)
    metrics.configure(tenants=["acme", "new"], upstreams=["time"], kernels=["python"])
    samples = scrape(metrics)
    assert value(samples, "mcp_gateway_requests_total", tenant="acme", tool="direct", outcome="ok") == 1
    assert value(samples, "mcp_gateway_requests_total", tenant="new", tool="direct", outcome="ok") == 0
    assert value(samples, "mcp_gateway_upstream_up", upstream="time") == 1
    assert (
        value(
            samples,
            "mcp_client_operation_duration_seconds_count",
            upstream="time",
            mcp_method_name="tools/call",
            error_type="",
        )
        == 1
    )
    assert not [labels for _, labels in samples if {("tenant", "zoo"), ("upstream", "files")} & labels]
    metrics.observe_call("files", "ok", 0.1)
    assert value(scrape(metrics), "mcp_gateway_upstream_calls_total", upstream="_OTHER", outcome="ok") == 1


def test_two_tables_do_not_meet_and_the_global_registry_stays_clean(metrics: Metrics) -> None:
    Metrics().tenant("acme").request("direct", "ok")
    assert value(scrape(metrics), "mcp_gateway_requests_total", tenant="acme", tool="direct", outcome="ok") == 0
    assert not [family.name for family in REGISTRY.collect() if family.name.startswith("mcp_")]


# ---- the page --------------------------------------------------------------------------------------------------------


async def test_scrapes_at_the_same_time_are_rendered_once_off_the_loop_after_a_refresh(metrics: Metrics) -> None:
    refreshed: list[int] = []

    def refresh() -> None:
        refreshed.append(threading.get_ident())
        metrics.kernel("python").set_workers(idle=0, busy=len(refreshed))

    metrics.on_scrape(refresh)
    pages = await asyncio.gather(*(metrics.page("") for _ in range(8)))
    assert len(refreshed) == 1
    assert refreshed[0] == threading.get_ident()
    assert len({page for page, _ in pages}) == 1
    assert b'mcp_gateway_kernel_workers{kernel="python",state="busy"} 1.0' in pages[0][0]
    other, content_type = await metrics.page(OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text")
    assert other.endswith(b"# EOF\n")


async def test_the_lag_of_the_event_loop_is_seen(metrics: Metrics) -> None:
    await metrics.start()
    try:
        await asyncio.sleep(0)
        time.sleep(0.4)  # noqa: ASYNC251 - the very thing that is measured
        async with asyncio.timeout(5):
            while not (lag := value(scrape(metrics), "mcp_gateway_event_loop_lag_seconds")):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert 0.1 < lag < 5
    finally:
        await metrics.stop()
        await metrics.stop()
