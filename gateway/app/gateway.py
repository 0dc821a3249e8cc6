"""The composition root: the one place where the rooms are built from the config and joined.

:class:`Gateway` owns everything that lives as long as the process: stores, the meter, upstreams, kernels, and the two
ASGI applications in front of them. :meth:`Gateway.running` starts it all and ends it in reverse order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from gateway import __version__
from gateway.app.catalogue import CatalogueKeeper
from gateway.app.operators import describe_upstream
from gateway.broker import Broker
from gateway.catalog.arguments import ArgumentValidator
from gateway.config.loader import Loaded
from gateway.config.model import Server
from gateway.edge.admin import AdminGuard, Operations, admin_app
from gateway.edge.guard import HttpLimits, guarded
from gateway.edge.http import Authorities, HttpRefused, Receive, Scope, Send, send_refusal
from gateway.edge.mcp import McpEndpoint
from gateway.edge.sessions import SessionIds
from gateway.facade.accounts import Accounts
from gateway.facade.base import Caller
from gateway.facade.changes import Changes
from gateway.facade.code import CodeFacade
from gateway.facade.direct import DirectFacade
from gateway.facade.docs import DocsSearch
from gateway.facade.features import Source
from gateway.facade.mode import ModeFacade
from gateway.facade.seals import Seals
from gateway.kernels.base import Kernel
from gateway.kernels.registry import build as build_kernel
from gateway.metering.ledger import open_ledger, summarise
from gateway.metering.meter import Meter
from gateway.metering.metrics import Metrics
from gateway.metering.report import as_row
from gateway.tenancy.authenticator import Authenticator
from gateway.tenancy.keyring import KeyRing
from gateway.tenancy.limits import MemoryQuotas
from gateway.tenancy.tenant import Tenants
from gateway.upstreams.federation import Federation

NOT_FOUND = "not found; MCP is served at /mcp and /mcp/direct, with an API key as Authorization: Bearer cmg_…"
SERVER_INFO = {"name": "codemode-gateway", "version": __version__}


class Gateway:
    """One gateway process.

    Args:
        loaded: the validated config and where it was read.

    Mutable state: the bound ports, set by whoever binds the sockets; everything else that changes is owned by a part.
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
        changes = Changes()
        self.catalogue = CatalogueKeeper(config.upstreams, self.tenants, self.meter, self.metrics, changes)
        self.view_of = self.catalogue.view_of
        self.federation = Federation(
            config.upstreams, folder, self.catalogue.upstream_changed, self.catalogue.announced
        )
        self._changes = changes
        self.kernels: dict[str, Kernel] = {}
        self.port = config.server.port
        self.admin_port = config.admin.port
        self.stopping = asyncio.Event()
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
            self.catalogue.begin(self.federation.upstreams.values())
            for keep, task_name in ((self.catalogue.keep, "catalogue"), (self.catalogue.count_lists, "list-tokens")):
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
        direct = DirectFacade(broker, self.view_of, accounts, self.quotas, self._sources, self._changes, seals)
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
            await send_refusal(send, HttpRefused(404, NOT_FOUND))
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

    # ---- what the facades ask ---------------------------------------------------------------------------------------

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
            {**describe_upstream(upstream), "inCatalog": self.catalogue.shows(upstream)}
            for _, upstream in sorted(self.federation.upstreams.items())
        ]

    def describe_tenants(self) -> Sequence[Mapping[str, Any]]:
        rows = []
        for name, tenant in self.tenants.items():
            code, direct = self.catalogue.list_tokens.get(name, (0, 0))
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


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


def http_protocol(server: Server) -> type[asyncio.Protocol]:
    """The HTTP protocol class of both listeners, with the limits of ``server``; for whoever runs the HTTP server."""
    return guarded(HttpLimits(server.max_headers, server.max_header_bytes, server.header_timeout, server.body_timeout))
