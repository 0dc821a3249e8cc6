"""The composition root: the one place where the rooms are built from the config and joined.

:class:`Gateway` owns everything that lives as long as the process: stores, the meter, upstreams, kernels, and the two
ASGI applications in front of them. :meth:`Gateway.running` starts it all and ends it in reverse order.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from gateway import __version__
from gateway.broker import Broker
from gateway.catalog.arguments import ArgumentValidator
from gateway.catalog.build import Listing, make_tools
from gateway.catalog.index import Segment
from gateway.catalog.snapshot import Catalog, UpstreamEntry
from gateway.catalog.view import TenantView
from gateway.config.literal_secrets import secret_value
from gateway.config.loader import Loaded
from gateway.config.model import GatewayConfig, HttpUpstream, StdioUpstream
from gateway.edge.admin import AdminGuard, Operations, admin_app
from gateway.edge.http import Authorities, HttpRefused, Receive, Scope, Send, send_refusal
from gateway.edge.mcp import McpEndpoint
from gateway.edge.sessions import SessionIds
from gateway.facade.accounts import Accounts, listed
from gateway.facade.base import Caller
from gateway.facade.changes import RESOURCE_UPDATED, TOOLS_CHANGED, Changes
from gateway.facade.code import CodeFacade
from gateway.facade.definitions import TOOLS
from gateway.facade.direct import DirectFacade
from gateway.facade.docs import DocsSearch
from gateway.facade.features import Source
from gateway.facade.mode import ModeFacade
from gateway.facade.seals import Seals
from gateway.kernels.base import Kernel
from gateway.kernels.registry import ENGINES, check_manifest
from gateway.kernels.registry import build as build_kernel
from gateway.metering.ledger import open_ledger, summarise
from gateway.metering.meter import Meter
from gateway.metering.metrics import Metrics
from gateway.metering.report import as_row
from gateway.tenancy.authenticator import Authenticator
from gateway.tenancy.keyring import KeyRing
from gateway.tenancy.limits import MemoryQuotas
from gateway.tenancy.tenant import Tenant, Tenants
from gateway.upstreams.environment import secrets_of
from gateway.upstreams.federation import Federation
from gateway.upstreams.redact import MASK, Redactor
from gateway.upstreams.supervisor import Upstream

log = logging.getLogger("gateway")

SERVER_INFO = {"name": "codemode-gateway", "version": __version__}


def kernel_problems(config: GatewayConfig) -> list[tuple[str, str]]:
    """What no schema can tell: tenants whose kernel is missing here or cannot enforce their manifest.

    Returns:
        (path in the config, message) pairs.
    """
    found: list[tuple[str, str]] = []
    for name, tenant in config.tenants.items():
        kernel = config.kernels.get(tenant.kernel)
        if kernel is None:
            continue  # the loader has said so, with its line
        if kernel.engine not in ENGINES:
            known = ", ".join(sorted(ENGINES))
            found.append((f"kernels.{tenant.kernel}.engine", f"no engine {kernel.engine!r} here; there is {known}"))
            continue
        found += [(f"tenants.{name}.manifest", text) for text in check_manifest(kernel.engine, tenant.manifest)]
    return found


class Gateway:
    """One gateway process.

    Args:
        loaded: the validated config and where it was read.

    Mutable state: ``catalog``, replaced as a whole by the catalogue task; ``_views``, one view a tenant for the current
    catalogue; the bound ports, set by whoever binds the sockets.
    """

    def __init__(self, loaded: Loaded) -> None:
        config, folder = loaded.config, loaded.folder
        self.config = config
        self.folder: Path = folder
        self.tenants = Tenants.from_config(config)
        self.metrics = Metrics()
        self.metrics.configure(tenants=self.tenants, upstreams=config.upstreams, kernels=config.kernels)
        self.metrics.on_scrape(self._refresh_gauges)
        self.meter = Meter.of(config.metering, on_degraded=self.metrics.metering_degraded)
        self.ledger = open_ledger(config.metering.ledger, base=folder, on_dropped=self.metrics.ledger_dropped)
        self.quotas = MemoryQuotas()
        self.catalog = Catalog.empty()
        self._views: dict[str, tuple[int, TenantView]] = {}
        self.changes = Changes()
        self.federation = Federation(config.upstreams, folder, self._upstream_changed, self._announced)
        self.kernels: dict[str, Kernel] = {}
        self.port = config.server.port
        self.admin_port = config.admin.port
        self.stopping = asyncio.Event()
        self._changed: asyncio.Queue[str] = asyncio.Queue()
        self._uncounted: asyncio.Queue[int] = asyncio.Queue()
        self._built: dict[str, _Built] = {}
        self._restarts: dict[str, int] = {}
        self._list_tokens: dict[str, tuple[int, int]] = {}
        self._tenant_authorities: tuple[int, Authorities] | None = None
        self._ready = False
        self._keyring: KeyRing | None = None
        self._tenant_app: Mapping[str, McpEndpoint] = {}
        self._admin_app = AdminGuard(
            admin_app(
                Operations(self.waiting_for, self.describe_upstreams, self.describe_tenants, self._usage), self.metrics
            ),
            self._admin_authorities,
            config.admin.token,
        )

    # ---- life -------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Gateway]:
        """Start everything; upstreams go on starting in the background.

        Raises:
            LedgerUnavailable, KeyStoreUnavailable, PepperUnavailable: nothing is left running then.
            GatewayError: KERNEL_UNAVAILABLE.
        """
        async with AsyncExitStack() as stack:
            keyring = await asyncio.to_thread(KeyRing.open, self.config.state, self.folder)
            stack.push_async_callback(asyncio.to_thread, keyring.close)
            self._keyring = keyring
            pepper = await asyncio.to_thread(keyring.pepper)
            authenticator = Authenticator(keyring.store, pepper, self.tenants)
            await authenticator.start()
            stack.push_async_callback(authenticator.stop)
            await self.ledger.start()
            stack.push_async_callback(self.ledger.stop)
            await self.meter.start()
            stack.push_async_callback(self.meter.stop)
            await self.metrics.start()
            stack.push_async_callback(self.metrics.stop)
            for name in self.tenants:
                self.quotas.seed_tokens(self.tenants[name], self.ledger.tokens_today(name))
            await self._start_kernels(stack)
            self._join(authenticator, pepper)
            for upstream in self.federation.upstreams.values():
                # tenants see from the first moment what is still starting
                self.catalog = self.catalog.with_upstream(self._entry(upstream))
            for keep, task_name in ((self._keep_catalog, "catalog-keeper"), (self._keep_list_tokens, "list-tokens")):
                stack.push_async_callback(_cancelled, asyncio.create_task(keep(), name=task_name))
            await stack.enter_async_context(self.federation)
            self._ready = True
            try:
                yield self
            finally:
                self._ready = False

    async def _start_kernels(self, stack: AsyncExitStack) -> None:
        """Start the kernels that some tenant uses; the others cost nothing."""
        used = {tenant.kernel for tenant in self.tenants.values()}
        for name, config in self.config.kernels.items():
            if name not in used:
                continue
            kernel = build_kernel(config.engine, config)
            await kernel.start()
            stack.push_async_callback(kernel.stop)
            self.kernels[name] = kernel

    def _join(self, authenticator: Authenticator, pepper: bytes) -> None:
        """Wire the request path, innermost first."""
        accounts = Accounts(self.meter, self.metrics, self.ledger, self.quotas)
        broker = Broker(self.federation.upstreams, self.quotas, ArgumentValidator(), self.metrics)
        docs = DocsSearch(lambda text: self.meter.count_now(text).tokens)
        code = CodeFacade(broker, self.kernels, self.view_of, accounts, self.quotas, docs)
        seals = Seals(pepper)
        direct = DirectFacade(broker, self.view_of, accounts, self.quotas, self._sources, self.changes, seals)
        sessions = SessionIds(pepper)

        def endpoint(facade: Any) -> McpEndpoint:
            return McpEndpoint(
                facade,
                authenticator=authenticator,
                tenant_of=self.tenants.__getitem__,
                authorities=self._authorities,
                sessions=sessions,
                metrics=self.metrics,
                server_info=SERVER_INFO,
                max_body=self.config.server.max_body,
                stopping=self.stopping,
            )

        self._tenant_app = {
            "/mcp": endpoint(ModeFacade(code, direct, self._shows_tools)),
            "/mcp/direct": endpoint(direct),
        }

    # ---- ASGI -------------------------------------------------------------------------------------------------------

    async def tenant_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The tenant listener."""
        if scope["type"] != "http":
            return
        endpoint = self._tenant_app.get(scope["path"])
        if endpoint is None:
            await send_refusal(send, HttpRefused(404, "not found; MCP is served at /mcp and /mcp/direct"))
            return
        await endpoint(scope, receive, send)

    async def admin_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The operator's listener."""
        if scope["type"] == "http":
            await self._admin_app(scope, receive, send)

    def _authorities(self) -> Authorities:
        server = self.config.server
        if self._tenant_authorities is None or self._tenant_authorities[0] != self.port:
            found = Authorities.of(server.host, self.port, server.public_url, server.allowed_origins)
            self._tenant_authorities = (self.port, found)
        return self._tenant_authorities[1]

    def _admin_authorities(self) -> Authorities:
        return Authorities.of(self.config.admin.host, self.admin_port, None)

    # ---- catalogue --------------------------------------------------------------------------------------------------

    def view_of(self, tenant: Tenant) -> TenantView:
        """What a tenant may see now; the same value until the catalogue changes."""
        known = self._views.get(tenant.name)
        if known is None or known[0] != self.catalog.version:
            known = (self.catalog.version, TenantView(self.catalog, tenant.patterns))
            self._views[tenant.name] = known
        return known[1]

    def _sources(self, names: Iterable[str]) -> list[Source]:
        """What upstreams offer besides tools; those that cannot be asked now are left out."""
        found = []
        for name in sorted(names):
            upstream = self.federation.upstreams.get(name)
            if upstream is not None and upstream.status.usable:
                prefix = self.config.upstreams[name].prefix
                status = upstream.status
                shown = f"{name}__" if prefix is None else prefix
                found.append(Source(name, shown, status.capabilities, status.era or "modern"))
        return found

    def _shows_tools(self, caller: Caller) -> bool:
        tenant = caller.tenant
        if tenant.mode == "auto":
            view = self.view_of(tenant)
            # while an upstream is still starting nobody knows how many tools there will be, and a client asks once
            starting = any(entry.state == "starting" and not entry.tools for entry in view.upstreams())
            return not starting and len(view.visible) < tenant.auto_threshold
        return tenant.mode == "direct"

    def _upstream_changed(self, upstream: Upstream) -> None:
        status = upstream.status
        bound = self.metrics.upstream(upstream.name)
        bound.set_state(up=status.usable, tools=status.tools)
        for _ in range(status.restarts - self._restarts.get(upstream.name, 0)):
            bound.restarted()
        self._restarts[upstream.name] = status.restarts
        self._changed.put_nowait(upstream.name)

    def _announced(self, upstream: Upstream, method: str, params: bytes) -> None:
        """An upstream says that its prompts or resources changed: tell the tenants that may use them.

        Its tools are read again first, and what that changes is told then.
        """
        if method == TOOLS_CHANGED:
            return
        uri = ""
        if method == RESOURCE_UPDATED:
            try:
                uri = msgspec.json.decode(params, type=_Updated).uri
            except msgspec.DecodeError:
                return
        for name in self.changes.listeners():
            tenant = self.tenants.get(name)
            if tenant is not None and upstream.name in self.view_of(tenant).whole:
                self.changes.tell(name, method, uri)

    def _tell_of_tools(self, seen: Mapping[str, str]) -> None:
        """Tell the tenants with open streams whose list of tools is another one now."""
        for name, digest in seen.items():
            if self.view_of(self.tenants[name]).tools_list_digest != digest:
                self.changes.tell(name, TOOLS_CHANGED)

    async def _keep_catalog(self) -> None:
        """Owns the catalogue: rebuilds what changed, off the loop, and swaps one reference."""
        while True:
            changes = [await self._changed.get()]
            while not self._changed.empty():
                changes.append(self._changed.get_nowait())
            listening = (name for name in self.changes.listeners() if name in self.tenants)
            seen = {name: self.view_of(self.tenants[name]).tools_list_digest for name in listening}
            for name in sorted(set(changes)):
                try:
                    entry = await asyncio.to_thread(self._entry, self.federation.upstreams[name])
                except Exception:
                    # a border: one upstream's hostile catalogue must not stop the others' updates
                    log.exception("the catalogue of upstream %s could not be read", name)
                    continue
                known = self.catalog.collisions
                self.catalog = self.catalog.with_upstream(entry)
                for collision in self.catalog.collisions:
                    if collision not in known:
                        log.error("two tools want one name: %s", collision)
            self._tell_of_tools(seen)
            self._uncounted.put_nowait(len(changes))

    async def _keep_list_tokens(self) -> None:
        """Counts the tenants' lists after each change; apart, because no catalogue may wait for the tokenizer."""
        while True:
            changes = await self._uncounted.get()
            while not self._uncounted.empty():
                changes += self._uncounted.get_nowait()
            await self._publish_list_tokens()
            for _ in range(changes):
                self._changed.task_done()

    async def settled(self, timeout_s: float = 5.0) -> None:
        """Wait until the catalogue and its token figures show what the upstreams have told, at most ``timeout_s``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.join()

    def _entry(self, upstream: Upstream) -> UpstreamEntry:
        """The catalogue's side of an upstream; its tools and search index are rebuilt only when they changed."""
        status, raw = upstream.status, upstream.tools
        built = self._built.get(upstream.name)
        if built is None or built.source is not raw:
            config = self.config.upstreams[upstream.name]
            listing = make_tools(upstream.name, config, [tool.definition for tool in raw])
            for problem in listing.problems:
                log.warning("%s", problem)
            built = _Built(raw, listing, Segment(upstream.name, listing.tools))
            self._built[upstream.name] = built
        return UpstreamEntry(
            name=upstream.name,
            tools=built.listing.tools,
            segment=built.segment,
            available=status.usable,
            state=status.state,
            reason=status.reason,
            instructions=status.instructions,
            title=status.server,
            since=status.since,
            problems=built.listing.problems,
        )

    async def _publish_list_tokens(self) -> None:
        """What each tenant's list costs in both modes, as gauges; waits for the tokenizer, so the figures are exact."""
        await self.meter.wait_loaded()
        code = sum(self.meter.count_definition(tool).tokens for tool in TOOLS)
        for tenant in self.tenants.values():
            definitions = [listed(tool) for tool in self.view_of(tenant).visible]
            direct = await self.meter.count_definitions(definitions)
            self.metrics.tenant(tenant.name).set_list_tokens(code=code, direct=direct.tokens)
            self._list_tokens[tenant.name] = (code, direct.tokens)

    def _refresh_gauges(self) -> None:
        for name, kernel in self.kernels.items():
            stats = kernel.stats()
            self.metrics.kernel(name).set_workers(idle=stats.idle, busy=stats.busy)
        self.metrics.set_metering_exact(self.meter.exact)

    # ---- what operators ask -----------------------------------------------------------------------------------------

    def waiting_for(self) -> Sequence[str]:
        """What keeps the gateway from serving. Upstreams never do: one that is down must not take the others along."""
        return () if self._ready else ("start-up",)

    def describe_upstreams(self) -> Sequence[Mapping[str, Any]]:
        return [
            {**describe_upstream(upstream), "inCatalog": self._in_catalog(upstream)}
            for _, upstream in sorted(self.federation.upstreams.items())
        ]

    def _in_catalog(self, upstream: Upstream) -> bool:
        """Whether tenants see this state and these tools already: the catalogue follows a moment later."""
        entry, built = self.catalog.upstreams.get(upstream.name), self._built.get(upstream.name)
        shown = None if entry is None else (entry.state, entry.since)
        return (
            shown == (upstream.status.state, upstream.status.since)
            and built is not None
            and built.source is upstream.tools
        )

    def describe_tenants(self) -> Sequence[Mapping[str, Any]]:
        rows = []
        for name, tenant in self.tenants.items():
            code, direct = self._list_tokens.get(name, (0, 0))
            rows.append(
                {
                    "name": name,
                    "mode": tenant.mode,
                    "kernel": tenant.kernel,
                    "tools": len(self.view_of(tenant).visible),
                    "toolsListTokens": {"code": code, "direct": direct},
                }
            )
        return rows

    async def _usage(self, tenant: str | None, since: float) -> Sequence[Mapping[str, Any]]:
        await self.ledger.flush(1.0)
        rows = await asyncio.to_thread(
            summarise, self.config.metering.ledger, base=self.folder, tenant=tenant, since=since
        )
        return [as_row(row) for row in rows]


def describe_upstream(upstream: Upstream) -> dict[str, Any]:
    """One upstream for an operator: state, stage and reason, never a credential."""
    status = upstream.status
    return {
        "name": upstream.name,
        "target": _target(upstream.config),
        "state": status.state,
        "since": status.since,
        "stage": status.stage or "",
        "reason": status.reason,
        "detail": status.detail,
        "retryAt": status.retry_at,
        "era": status.era or "",
        "version": status.version,
        "server": status.server,
        "tools": status.tools,
        "dropped": status.dropped,
        "restarts": status.restarts,
        "connectMs": None if status.connect_ms is None else round(status.connect_ms),
    }


def _target(config: StdioUpstream | HttpUpstream) -> str:
    """The command line or the address, without what looks like a credential."""
    if isinstance(config, HttpUpstream):
        parts = urlsplit(config.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    secrets = Redactor(secrets_of({}, config.env, config.args))
    return shlex.join([config.command, *(MASK if secret_value(arg) else secrets.hide(arg) for arg in config.args)])


class _Updated(msgspec.Struct):
    """``params`` of notifications/resources/updated."""

    uri: str


@dataclass(frozen=True, slots=True)
class _Built:
    """An upstream's list as records and index, and the very list they were made from."""

    source: Sequence[Any]
    listing: Listing
    segment: Segment


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
