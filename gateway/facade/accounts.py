"""The books of one request: opened when it arrives, settled once, written to ``_meta``, metrics and ledger alike.

All three carry the same figures because they come from the same record (``docs/metering.md``). Settling never fails a
request and never delays it by more than the meter's small budget.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.broker import CallTrace, Ticket
from gateway.catalog.tool import Tool
from gateway.catalog.view import TenantView
from gateway.errors import ErrorClass
from gateway.facade.base import Caller
from gateway.metering.ledger import Ledger
from gateway.metering.meter import Meter, Part, Tokens
from gateway.metering.metrics import OK, Metrics
from gateway.metering.tokens import Count
from gateway.metering.usage import CallRow, Endpoint, UsageRow
from gateway.tenancy.limits import Quotas
from gateway.tenancy.tenant import Tenant

USAGE_KEY = "codemode-gateway/usage"


class Accounts:
    """Opens the books of requests.

    Args:
        meter: counts tokens.
        metrics: the Prometheus side.
        ledger: the rows.
        quotas: gets the tokens really sent, for the daily limit.

    Mutable state: ``_definitions``, the counted lists by view; exact ones only, and views are few: one a tenant and
    catalogue version.
    """

    def __init__(self, meter: Meter, metrics: Metrics, ledger: Ledger, quotas: Quotas) -> None:
        self.meter = meter
        self.metrics = metrics
        self._ledger = ledger
        self._quotas = quotas
        self._definitions: weakref.WeakKeyDictionary[TenantView, Count] = weakref.WeakKeyDictionary()

    def open(self, caller: Caller, view: TenantView, *, endpoint: Endpoint, method: str, tool: str) -> Account:
        """Begin a request. ``tool`` is a metric label: docs_search, execute_code, direct or other."""
        hidden = endpoint == "code"
        ticket = Ticket(caller.tenant, view, self.meter.tally(sandboxed=hidden), caller.live, hidden)
        return Account(self, caller, ticket, endpoint, method, tool)

    async def definitions(self, view: TenantView) -> Count:
        """Tokens of everything the tenant may see, as direct mode lists it; counted once a view."""
        known = self._definitions.get(view)
        if known is None:
            known = await self.meter.count_definitions([listed(tool) for tool in view.visible])
            if not known.estimated:
                self._definitions[view] = known
        return known

    def facade_definitions(self, tools: Iterable[Mapping[str, Any]]) -> Count:
        """Tokens of the facade's own few tools; cached by content."""
        return sum((self.meter.count_definition(tool) for tool in tools), Count(0))

    def rejected(self, tenant: Tenant, reason: ErrorClass) -> None:
        """Count a request that was refused before any work."""
        self.metrics.tenant(tenant.name).reject(reason)

    def write(self, account: Account, tokens: Tokens, outcome: str, cpu_ms: float, kernel: str, wall_ms: float) -> None:
        """One settled request into metrics, quota and ledger."""
        caller, calls = account.caller, account.ticket.calls
        row = UsageRow(
            request_id=caller.request_id,
            ts=account.opened,
            tenant=caller.tenant.name,
            key_id=caller.key_id,
            endpoint=account.endpoint,
            method=account.method,
            tool=account.tool,
            outcome=outcome,
            error_class="" if outcome == OK else outcome,
            tokens=tokens,
            tool_calls=len(calls),
            calls_failed=sum(call.outcome != OK for call in calls),
            cpu_ms=cpu_ms,
            wall_ms=wall_ms,
            kernel=kernel,
            protocol=caller.protocol,
        )
        self.metrics.tenant(caller.tenant.name).request(account.tool, outcome, tokens)
        self._quotas.add_tokens(caller.tenant, tokens.code)
        self._ledger.record(row, [_call_row(caller.request_id, call) for call in calls])


class Account:
    """One request's books.

    Attributes:
        caller: who asked.
        ticket: what it may call and has called.
        opened: Unix time.
    """

    def __init__(
        self, accounts: Accounts, caller: Caller, ticket: Ticket, endpoint: Endpoint, method: str, tool: str
    ) -> None:
        self._accounts = accounts
        self.caller = caller
        self.ticket = ticket
        self.endpoint: Endpoint = endpoint
        self.method = method
        self.tool = tool
        self.opened = time.time()
        self._started = time.perf_counter()
        self._closed = False
        self._cpu_ms = 0.0
        self._kernel = ""

    def sent(self, part: Part, text: str, *, also: Part | None = None) -> None:
        """A text that really went to or came from the model's context."""
        self.ticket.tally.add(part, text, also=also)

    def listed(self, part: Part, count: Count, *, also: Part | None = None) -> None:
        """A list of definitions, counted already."""
        self.ticket.tally.add_counted(part, count, also=also)

    def ran(self, kernel: str, cpu_ms: float) -> None:
        """A script of this request has ended, one way or another."""
        self._kernel, self._cpu_ms = kernel, cpu_ms

    async def close(self, outcome: str) -> dict[str, Any]:
        """Settle, write, and return the ``_meta`` block. The first close counts; later ones change nothing."""
        if self._closed:
            return {}
        self._closed = True
        wall_ms = (time.perf_counter() - self._started) * 1000
        tokens = await self.ticket.tally.settle()
        self._accounts.write(self, tokens, outcome, self._cpu_ms, self._kernel, wall_ms)
        usage: dict[str, Any] = {
            "requestId": self.caller.request_id,
            "tokens": {
                "in": tokens.input,
                "out": tokens.output,
                "hidden": tokens.hidden,
                "directEquivalent": tokens.direct,
                "encoding": tokens.encoding,
                "estimated": tokens.estimated,
            },
            "toolCalls": len(self.ticket.calls),
            "cpuMs": round(self._cpu_ms, 3),
            "wallMs": round(wall_ms, 3),
        }
        if self._kernel:
            usage["kernel"] = self._kernel
        return {USAGE_KEY: usage}

    def abandon(self, outcome: str) -> None:
        """Settle at once, without waiting: nobody listens any more."""
        if not self._closed:
            self._closed = True
            wall_ms = (time.perf_counter() - self._started) * 1000
            tokens = self.ticket.tally.settle_now()
            self._accounts.write(self, tokens, outcome, self._cpu_ms, self._kernel, wall_ms)


def listed(tool: Tool) -> dict[str, Any]:
    """A tool as direct mode lists it: what the upstream published, under the name that is called here."""
    definition = {**tool.definition, "name": tool.direct_name}
    if tool.description != tool.definition.get("description", ""):
        definition["description"] = tool.description
    return definition


def _call_row(request_id: str, call: CallTrace) -> CallRow:
    asked, answered = call.asked, call.answered
    return CallRow(
        request_id,
        call.seq,
        call.upstream,
        call.tool,
        call.outcome or ErrorClass.CANCELLED,
        call.ms,
        asked.tokens if asked else 0,
        answered.tokens if answered else 0,
        any(entry is None or entry.estimated for entry in (asked, answered)),
    )
