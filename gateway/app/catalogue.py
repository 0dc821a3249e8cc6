"""Keeping the catalogue: what the upstreams tell becomes one immutable value, and whoever must know is told.

Upstreams change in their own tasks and only say so here. Two tasks of the keeper do the rest: one rebuilds the entry of
each upstream that changed, off the event loop, and swaps one reference; the other counts what the tenants' lists cost,
apart, because no catalogue may wait for the tokenizer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.catalog.build import Listing, make_tools
from gateway.catalog.index import Segment
from gateway.catalog.snapshot import Catalog, UpstreamEntry
from gateway.catalog.view import TenantView
from gateway.config.model import HttpUpstream, StdioUpstream
from gateway.facade.accounts import listed
from gateway.facade.changes import PROMPTS_CHANGED, RESOURCE_UPDATED, RESOURCES_CHANGED, TOOLS_CHANGED, Changes
from gateway.facade.definitions import TOOLS
from gateway.metering.meter import Meter
from gateway.metering.metrics import Metrics
from gateway.tenancy.tenant import Tenant, Tenants
from gateway.upstreams.supervisor import Upstream

log = logging.getLogger("gateway")


class CatalogueKeeper:
    """Owns the catalogue and the tenants' views of it.

    Args:
        configs: upstream name → its config, for overrides and prefixes.
        tenants: whose views and lists are kept.
        meter: counts the lists.
        metrics: gets state and list sizes.
        changes: hears what open streams want to know.

    Attributes:
        catalog: the current snapshot; replaced as a whole, by :meth:`keep` only.
        list_tokens: tenant → tokens of its ``tools/list`` in code mode and in direct mode.
    """

    def __init__(
        self,
        configs: Mapping[str, StdioUpstream | HttpUpstream],
        tenants: Tenants,
        meter: Meter,
        metrics: Metrics,
        changes: Changes,
    ) -> None:
        self.catalog = Catalog.empty()
        self.list_tokens: dict[str, tuple[int, int]] = {}
        self._configs = configs
        self._tenants = tenants
        self._meter = meter
        self._metrics = metrics
        self._changes = changes
        self._views: dict[str, tuple[int, TenantView]] = {}  # one a tenant, for the current catalogue
        self._changed: asyncio.Queue[Upstream] = asyncio.Queue()
        self._uncounted: asyncio.Queue[int] = asyncio.Queue()
        self._built: dict[str, _Built] = {}
        self._restarts: dict[str, int] = {}
        self._usable: set[str] = set()

    def begin(self, upstreams: Iterable[Upstream]) -> None:
        """Enter what is still starting, so that tenants see it from the first moment."""
        for upstream in upstreams:
            self.catalog = self.catalog.with_upstream(self._entry(upstream))

    # ---- what others ask --------------------------------------------------------------------------------------------

    def view_of(self, tenant: Tenant) -> TenantView:
        """What a tenant may see now; the same value until the catalogue changes."""
        known = self._views.get(tenant.name)
        if known is None or known[0] != self.catalog.version:
            known = (self.catalog.version, TenantView(self.catalog, tenant.patterns))
            self._views[tenant.name] = known
        return known[1]

    async def settled(self, timeout_s: float = 5.0) -> None:
        """Wait until the catalogue and its token figures show what the upstreams have told, at most ``timeout_s``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.join()

    def shows(self, upstream: Upstream) -> bool:
        """Whether tenants see this state and these tools already: the catalogue follows a moment later."""
        entry, built = self.catalog.upstreams.get(upstream.name), self._built.get(upstream.name)
        shown = None if entry is None else (entry.state, entry.since)
        return (
            shown == (upstream.status.state, upstream.status.since)
            and built is not None
            and built.source is upstream.tools
        )

    # ---- what upstreams tell; both are called on the loop and return at once ----------------------------------------

    def upstream_changed(self, upstream: Upstream) -> None:
        status = upstream.status
        bound = self._metrics.upstream(upstream.name)
        bound.set_state(up=status.usable, tools=status.tools)
        for _ in range(status.restarts - self._restarts.get(upstream.name, 0)):
            bound.restarted()
        self._restarts[upstream.name] = status.restarts
        self._changed.put_nowait(upstream)
        if status.usable != (upstream.name in self._usable):
            # its tools stay listed while it is down; prompts and resources come from the server itself
            self._usable ^= {upstream.name}
            for capability, method in (("prompts", PROMPTS_CHANGED), ("resources", RESOURCES_CHANGED)):
                if capability in status.capabilities:
                    self._tell(upstream, method)

    def announced(self, upstream: Upstream, method: str, params: bytes) -> None:
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
        self._tell(upstream, method, uri)

    def _tell(self, upstream: Upstream, method: str, uri: str = "") -> None:
        """Tell the tenants that may use the upstream whole."""
        for name in self._changes.listeners():
            tenant = self._tenants.get(name)
            if tenant is not None and upstream.name in self.view_of(tenant).whole:
                self._changes.tell(name, method, upstream.name, uri)

    # ---- the two tasks ----------------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Owns the catalogue: rebuilds what changed, off the loop, and swaps one reference."""
        while True:
            changes = [await self._changed.get()]
            while not self._changed.empty():
                changes.append(self._changed.get_nowait())
            entries = []
            for upstream in sorted(set(changes), key=lambda upstream: upstream.name):
                try:
                    entries.append(await asyncio.to_thread(self._entry, upstream))
                except Exception:
                    # a border: one upstream's hostile catalogue must not stop the others' updates
                    log.exception("the catalogue of upstream %s could not be read", upstream.name)
            # without a pause from here on: whoever begins to listen either hears of the change or lists what it brought
            listening = (name for name in self._changes.listeners() if name in self._tenants)
            seen = {name: self.view_of(self._tenants[name]).tools_list_digest for name in listening}
            for entry in entries:
                known = self.catalog.collisions
                self.catalog = self.catalog.with_upstream(entry)
                for collision in self.catalog.collisions:
                    if collision not in known:
                        log.error("two tools want one name: %s", collision)
            self._tell_of_tools(seen)
            self._uncounted.put_nowait(len(changes))

    async def count_lists(self) -> None:
        """Counts the tenants' lists after each change; apart, because no catalogue may wait for the tokenizer."""
        while True:
            changes = await self._uncounted.get()
            while not self._uncounted.empty():
                changes += self._uncounted.get_nowait()
            await self._publish_list_tokens()
            for _ in range(changes):
                self._changed.task_done()

    def _tell_of_tools(self, seen: Mapping[str, str]) -> None:
        """Tell the tenants with open streams whose list of tools is another one now."""
        for name, digest in seen.items():
            if self.view_of(self._tenants[name]).tools_list_digest != digest:
                self._changes.tell(name, TOOLS_CHANGED)

    def _entry(self, upstream: Upstream) -> UpstreamEntry:
        """The catalogue's side of an upstream; its tools and search index are rebuilt only when they changed."""
        status, raw = upstream.status, upstream.tools
        built = self._built.get(upstream.name)
        if built is None or built.source is not raw:
            config = self._configs[upstream.name]
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
        await self._meter.wait_loaded()
        code = sum(self._meter.count_definition(tool).tokens for tool in TOOLS)
        for tenant in self._tenants.values():
            definitions = [listed(tool) for tool in self.view_of(tenant).visible]
            direct = await self._meter.count_definitions(definitions)
            self._metrics.tenant(tenant.name).set_list_tokens(code=code, direct=direct.tokens)
            self.list_tokens[tenant.name] = (code, direct.tokens)


class _Updated(msgspec.Struct):
    """``params`` of notifications/resources/updated."""

    uri: str


@dataclass(frozen=True, slots=True)
class _Built:
    """An upstream's list as records and index, and the very list they were made from."""

    source: Sequence[Any]
    listing: Listing
    segment: Segment
