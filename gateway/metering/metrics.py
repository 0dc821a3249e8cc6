"""Every Prometheus metric of the gateway, by its fixed name.

Rules, and how they are kept:

* Label values come from the configuration and from the fixed sets below; anything else is ``_OTHER``. A name that a
  client sends never becomes a series of its own.
* ``tenant`` stands on counters and single gauges only, and never beside a tool of an upstream: the fine grain is in
  the ledger. No key, session, request, user or URL is ever a label.
* Children are bound once (0.2 to 1 µs an increment instead of 3.5) and exist at zero before their first event, so
  that rates and alerts see it.

All methods are safe on any thread and never raise on an unexpected value.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

import gateway
from gateway.errors import ErrorClass
from gateway.metering.page import LoopLag, MetricsPage
from gateway.metering.parts import Part, Tokens
from gateway.metering.series import OTHER, Children, rebind

OK, ERROR, RPC_ERROR = "ok", "error", "rpc_error"

OUTCOMES = frozenset({OK, ERROR, RPC_ERROR, *ErrorClass})
"""``ok``; ``error``: the gateway's own fault; ``rpc_error``: an upstream's JSON-RPC error; else the error class."""
_OWN_FAULTS = frozenset({ErrorClass.KERNEL_CRASHED, ErrorClass.KERNEL_UNAVAILABLE})
REQUEST_TOOLS = frozenset({"docs_search", "execute_code", "direct", "other"})
REASONS = frozenset(
    {*ErrorClass, "unauthenticated", "forbidden", "concurrency", "too_large", "malformed", "origin", "host"}
)
METHODS = frozenset(
    {"initialize", "ping", "server/discover", "subscriptions/listen", "logging/setLevel", "completion/complete"}
    | {"tools/list", "tools/call", "prompts/list", "prompts/get", "resources/list", "resources/templates/list"}
    | {"resources/read", "resources/subscribe", "resources/unsubscribe"}
    | {"notifications/initialized", "notifications/cancelled", "notifications/progress"}
)
PROTOCOLS = frozenset({"", "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"})
TRANSPORTS = frozenset({"tcp", "pipe"})
ERROR_TYPES = frozenset(
    {"", "tool_error", RPC_ERROR, ERROR, "internal", "invalid_params", "forbidden", *ErrorClass}
    | {"-32700", "-32600", "-32601", "-32602", "-32603", "400", "401", "403", "404", "405", "406", "413", "415", "429"}
)

# OpenTelemetry's boundaries for MCP durations
_DURATIONS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
# The five labels of one histogram could multiply to 100,000 series by a client that tries all of them; what comes
# after so many different sets is counted under _OTHER.
_MAX_SERVER_SETS, _MAX_CLIENT_SETS = 64, 160

_CONTEXT_HELP = (
    'Tokens of texts that enter a model\'s context, each text counted once. mode="code": really sent by this gateway. '
    'mode="direct": a counterfactual, what plain MCP would have put there for the same events, from the same tenant\'s '
    "own tools, failed calls included. A tool definition counts as compact JSON of its name, description and "
    "inputSchema. Saved is direct minus code and may be negative."
)


class TenantMetrics:
    """The counters of one tenant, bound. Made by :meth:`Metrics.tenant`; keep it no longer than a request."""

    def __init__(self, table: Metrics, name: str) -> None:
        self._context = [(part.value, table.context_tokens.labels(name, part.mode, part.label)) for part in Part]
        table.context_tokens.labels(name, "direct", "docs")  # always 0: direct MCP has no documentation search
        self._list_code = table.tools_list_tokens.labels(name, "code")
        self._list_direct = table.tools_list_tokens.labels(name, "direct")
        self._hidden = table.hidden_tokens.labels(name)
        self._requests = Children(table.requests, (REQUEST_TOOLS, OUTCOMES), (name,))
        self._rejections = Children(table.rejections, (REASONS,), (name,))
        for tool in sorted(REQUEST_TOOLS):
            for outcome in (OK, ERROR, ErrorClass.TOOL_ERROR):
                self._requests.get(tool, outcome)
        known = (ErrorClass.RATE_LIMITED, ErrorClass.QUOTA_EXCEEDED, ErrorClass.CAPABILITY_DENIED)
        for reason in known if name != OTHER else ("unauthenticated",):
            self._rejections.get(reason)

    def request(self, tool: str, outcome: str, tokens: Tokens | None = None) -> None:
        """A request has ended.

        Args:
            tool: one of ``REQUEST_TOOLS``.
            outcome: one of ``OUTCOMES``; a failure of the kernel counts as ``error``, on which alerts are set.
            tokens: its settled figures, as in ``_meta`` and ledger.
        """
        self._requests.get(tool, ERROR if outcome in _OWN_FAULTS else outcome).inc()
        if tokens is not None:
            self.add_tokens(tokens)

    def add_tokens(self, tokens: Tokens) -> None:
        """The settled figures of an event, for both arms at once."""
        for field, counter in self._context:
            if figure := getattr(tokens, field):
                counter.inc(figure)
        self._hidden.inc(tokens.hidden)

    def set_list_tokens(self, *, code: int, direct: int) -> None:
        """Tokens of what the tenant's ``tools/list`` carries on ``/mcp``, and would carry on ``/mcp/direct``."""
        self._list_code.set(code)
        self._list_direct.set(direct)

    def reject(self, reason: str) -> None:
        """A request or a call was refused; one of ``REASONS``."""
        self._rejections.get(reason).inc()


class UpstreamMetrics:
    """The metrics of one upstream. Made by :meth:`Metrics.upstream`."""

    def __init__(self, table: Metrics, name: str) -> None:
        self._name = name
        self._up, self._tools = table.upstream_up, table.upstream_tools
        self._restarts = table.upstream_restarts.labels(name)
        self._calls = Children(table.upstream_calls, (OUTCOMES,), (name,))
        failures = (ErrorClass.TOOL_ERROR, ErrorClass.UPSTREAM_UNAVAILABLE, ErrorClass.UPSTREAM_TIMEOUT)
        for outcome in (OK, RPC_ERROR, *failures):
            self._calls.get(outcome)

    def set_state(self, *, up: bool, tools: int) -> None:
        """Whether it can be called now, and how many tools it lists."""
        # not bound in advance: _OTHER is no upstream, and an alert must not see it as one that is down
        self._up.labels(self._name).set(up)
        self._tools.labels(self._name).set(tools)

    def restarted(self) -> None:
        """It was started or connected again after a failure."""
        self._restarts.inc()

    def called(self, outcome: str) -> None:
        """A tool call was sent to it and has ended; one of ``OUTCOMES``."""
        self._calls.get(outcome).inc()


class KernelMetrics:
    """The metrics of one kernel. Made by :meth:`Metrics.kernel`."""

    def __init__(self, table: Metrics, name: str) -> None:
        self._executions = Children(table.executions, (OUTCOMES,), (name,))
        for outcome in (OK, *ErrorClass):
            self._executions.get(outcome)
        self._seconds = table.execution_seconds.labels(name)
        self._name = name
        self._workers = table.kernel_workers

    def executed(self, outcome: str, seconds: float) -> None:
        """A script has ended: ``ok`` or its error class, and its wall time."""
        self._executions.get(outcome).inc()
        self._seconds.observe(seconds)

    def set_workers(self, *, idle: int, busy: int) -> None:
        self._workers.labels(self._name, "idle").set(idle)
        self._workers.labels(self._name, "busy").set(busy)


class Metrics:
    """The whole table, in a registry of its own.

    Args:
        registry: where to register; default: a new one. Not the global one of prometheus_client.

    Mutable state: the bound metrics of the configured names, replaced by :meth:`configure` only.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        # a process-wide switch of the library: "_created" doubles the lines of each counter and nothing reads them
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry or CollectorRegistry(auto_describe=True)
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry, buckets=_DURATIONS)

        self.context_tokens = counter("mcp_gateway_context_tokens", _CONTEXT_HELP, ("tenant", "mode", "part"))
        self.tools_list_tokens = gauge(
            "mcp_gateway_tools_list_tokens",
            'Tokens of the tenant\'s tools/list; mode="direct" is the counterfactual list of its own visible tools.',
            ("tenant", "mode"),
        )
        self.hidden_tokens = counter(
            "mcp_gateway_hidden_tokens", "Tokens of inner calls and results that stayed in the sandbox.", ("tenant",)
        )
        self.requests = counter("mcp_gateway_requests", "Requests answered.", ("tenant", "tool", "outcome"))
        self.rejections = counter(
            "mcp_gateway_rejections", "Requests and calls refused, by reason.", ("tenant", "reason")
        )
        self.executions = counter("mcp_gateway_executions", "Scripts run.", ("kernel", "outcome"))
        self.execution_seconds = histogram("mcp_gateway_execution_seconds", "Wall time of a script.", ("kernel",))
        self.kernel_workers = gauge("mcp_gateway_kernel_workers", "Sandbox workers.", ("kernel", "state"))
        self.upstream_up = gauge("mcp_gateway_upstream_up", "1 when the upstream can be called.", ("upstream",))
        self.upstream_calls = counter(
            "mcp_gateway_upstream_calls", "Tool calls sent to the upstream.", ("upstream", "outcome")
        )
        self.upstream_restarts = counter(
            "mcp_gateway_upstream_restarts", "Starts and connections after the first.", ("upstream",)
        )
        self.upstream_tools = gauge("mcp_gateway_upstream_tools", "Tools the upstream lists.", ("upstream",))
        self._server_seconds = histogram(
            "mcp_server_operation_duration_seconds",
            "Time to answer an MCP request.",
            ("mcp_method_name", "gen_ai_tool_name", "error_type", "network_transport", "mcp_protocol_version"),
        )
        self._client_seconds = histogram(
            "mcp_client_operation_duration_seconds",
            "Time an upstream took to answer.",
            ("upstream", "mcp_method_name", "error_type"),
        )
        self._reload_ok = gauge(
            "mcp_gateway_config_last_reload_successful", "1 when the last reading of the configuration succeeded."
        )
        self._ledger_dropped = counter("mcp_gateway_ledger_dropped_rows", "Usage rows lost before they were written.")
        self._degraded = counter(
            "mcp_gateway_metering_degraded", "Texts estimated because the counting thread was behind."
        )
        self._exact = gauge("mcp_gateway_metering_exact", "1 when tokens are counted, 0 while they are estimated.")
        lag = gauge("mcp_gateway_event_loop_lag_seconds", "Largest delay of the event loop in the last 5 seconds.")
        build = Info("mcp_gateway_build", "Versions of what is running.", registry=self.registry)
        build.info({"version": gateway.__version__, "python": platform.python_version(), "mcp": _version_of("mcp")})
        prometheus_client.ProcessCollector(registry=self.registry)

        self._reload_ok.set(1)
        self._page = MetricsPage(self.registry)
        self._lag = LoopLag(lag.set)
        self._tenants: dict[str, TenantMetrics] = {}
        self._upstreams: dict[str, UpstreamMetrics] = {}
        self._kernels: dict[str, KernelMetrics] = {}
        server_labels = (METHODS, frozenset({"", "docs_search", "execute_code"}), ERROR_TYPES, TRANSPORTS, PROTOCOLS)
        self._server = Children(self._server_seconds, server_labels, capacity=_MAX_SERVER_SETS)
        self._client = Children(self._client_seconds, (frozenset(), METHODS, ERROR_TYPES), capacity=_MAX_CLIENT_SETS)
        self.configure()

    # ---- names ----------------------------------------------------------------------------------------------------

    def configure(
        self, *, tenants: Iterable[str] = (), upstreams: Iterable[str] = (), kernels: Iterable[str] = ()
    ) -> None:
        """Make the series of these names, at zero, and drop those of names that are gone. For start and reload."""
        by_tenant = (
            *(self.context_tokens, self.tools_list_tokens, self.hidden_tokens),
            *(self.requests, self.rejections),
        )
        by_upstream = (
            *(self.upstream_up, self.upstream_calls, self.upstream_restarts, self.upstream_tools),
            self._client_seconds,
        )
        by_kernel = (self.executions, self.execution_seconds, self.kernel_workers)
        had_upstreams, had_kernels = self._upstreams.keys(), self._kernels.keys()
        self._tenants = rebind(self._tenants, tenants, partial(TenantMetrics, self), "tenant", by_tenant)
        self._upstreams = rebind(self._upstreams, upstreams, partial(UpstreamMetrics, self), "upstream", by_upstream)
        self._kernels = rebind(self._kernels, kernels, partial(KernelMetrics, self), "kernel", by_kernel)
        self._client.allow(frozenset(self._upstreams), METHODS, ERROR_TYPES)
        for name in self._upstreams.keys() - had_upstreams - {OTHER}:
            self._upstreams[name].set_state(up=False, tools=0)
            self._client.get(name, "tools/call", "")
        for name in self._kernels.keys() - had_kernels - {OTHER}:
            self._kernels[name].set_workers(idle=0, busy=0)
        for tool in ("docs_search", "execute_code"):
            self._server.get("tools/call", tool, "", "tcp", "2026-07-28")

    def tenant(self, name: str) -> TenantMetrics:
        """The metrics of a configured tenant; those of ``_OTHER`` for anything else, such as an unknown key's."""
        return self._tenants.get(name) or self._tenants[OTHER]

    def upstream(self, name: str) -> UpstreamMetrics:
        """The metrics of a configured upstream."""
        return self._upstreams.get(name) or self._upstreams[OTHER]

    def kernel(self, name: str) -> KernelMetrics:
        """The metrics of a configured kernel."""
        return self._kernels.get(name) or self._kernels[OTHER]

    # ---- events ---------------------------------------------------------------------------------------------------

    def observe_server(
        self,
        method: str,
        error_type: str,
        protocol: str,
        seconds: float,
        *,
        tool: str = "",
        trace_id: str | None = None,
    ) -> None:
        """An MCP request has been answered.

        Args:
            method: as the client sent it.
            error_type: "" when it went well, ``tool_error`` for ``isError``, else the class or code.
            protocol: the MCP version.
            tool: ``docs_search``, ``execute_code``, or anything for another tool; "" when there is none.
            trace_id: becomes the exemplar.
        """
        child = self._server.get(method, tool, error_type, "tcp", protocol)
        child.observe(seconds, {"trace_id": trace_id} if trace_id and len(trace_id) <= 64 else None)

    def observe_call(self, upstream: str, outcome: str, seconds: float) -> None:
        """A tool call that was sent to an upstream has ended; ``outcome`` is one of ``OUTCOMES``."""
        self.upstream(upstream).called(outcome)
        error_type = {OK: "", ErrorClass.TOOL_ERROR: "tool_error"}.get(outcome, outcome)
        self.observe_client(upstream, "tools/call", error_type, seconds)

    def observe_client(self, upstream: str, method: str, error_type: str, seconds: float) -> None:
        """A request of any method to an upstream has ended. For tools/call use :meth:`observe_call`."""
        self._client.get(upstream, method, error_type).observe(seconds)

    def config_reloaded(self, ok: bool) -> None:
        self._reload_ok.set(ok)

    def ledger_dropped(self, rows: int) -> None:
        self._ledger_dropped.inc(rows)

    def metering_degraded(self, texts: int) -> None:
        self._degraded.inc(texts)

    def set_metering_exact(self, exact: bool) -> None:
        self._exact.set(exact)

    # ---- the page -------------------------------------------------------------------------------------------------

    def on_scrape(self, refresh: Callable[[], None]) -> None:
        """Have gauges set just before the page is rendered; ``refresh`` runs on the event loop and must be quick."""
        self._page.before.append(refresh)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type: OpenMetrics if ``accept`` asks for it. Takes up to 0.1 s: use a thread."""
        return self._page.render(accept)

    async def page(self, accept: str = "") -> tuple[bytes, str]:
        """The same, rendered in a thread, at most once a second."""
        return await self._page.get(accept)

    async def start(self) -> None:
        """Start to sample the event loop's lag."""
        self._lag.start()

    async def stop(self) -> None:
        """End what :meth:`start` began. Idempotent."""
        await self._lag.stop()


def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
