"""The one door: every tool call of every tenant goes through :meth:`Broker.call`, from scripts and from direct mode.

Its order is fixed: may this tenant see the tool → are the arguments what it takes → is there quota → dispatch with a
deadline → meter. What a tenant can list is what it can call, because both ask the same :class:`TenantView`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gateway.catalog.arguments import ArgumentValidator
from gateway.catalog.tool import Tool
from gateway.catalog.view import TenantView
from gateway.errors import ErrorClass, GatewayError
from gateway.metering.context import call_text, result_text
from gateway.metering.meter import Entry, Part, Tally
from gateway.metering.metrics import OK, RPC_ERROR, Metrics
from gateway.tenancy.limits import Quotas
from gateway.tenancy.tenant import Tenant
from gateway.upstreams.base import CALLER, Beside, CallResult, RpcFailed, UpstreamFailed
from gateway.upstreams.supervisor import Upstream


@dataclass(slots=True)
class CallTrace:
    """One call that a request made, from the moment it was asked for.

    Attributes:
        seq: its number within the request, from 1.
        tool: the name as the script can write it.
        upstream: "" when the tool is unknown.
        outcome: ``ok``, an error class, or "" while it is in flight.
        dispatched: it was sent to the upstream.
        rpc_error: the upstream answered with a JSON-RPC error, not with a result.
        ms: wall time.
        asked, answered: its entries in the tally; None while it is in flight.
    """

    seq: int
    tool: str
    upstream: str = ""
    outcome: str = ""
    dispatched: bool = False
    rpc_error: bool = False
    ms: float = 0.0
    asked: Entry | None = None
    answered: Entry | None = None


@dataclass(slots=True)
class Ticket:
    """What one request may reach, and the account of what it did. Made by the facade, one a request.

    Attributes:
        tenant: who pays.
        view: what it may see; the snapshot that the request began with.
        tally: where tokens of this request are counted.
        live: whether the key that it began with still holds.
        hidden: its calls stay in a sandbox; False in direct mode, where the same texts really reach the model.
        calls: all calls so far, in the order they were asked for; written by the broker only.
    """

    tenant: Tenant
    view: TenantView
    tally: Tally
    live: Callable[[], bool]
    hidden: bool = True
    calls: list[CallTrace] = field(default_factory=list)


class Broker:
    """Authorises, limits, dispatches and meters tool calls.

    Args:
        upstreams: the live upstreams by name.
        quotas: limits over time.
        validator: checks arguments against input schemas.
        metrics: where calls are counted.
    """

    def __init__(
        self,
        upstreams: Mapping[str, Upstream],
        quotas: Quotas,
        validator: ArgumentValidator,
        metrics: Metrics,
    ) -> None:
        self._upstreams = upstreams
        self._quotas = quotas
        self._validator = validator
        self._metrics = metrics

    async def call(
        self,
        ticket: Ticket,
        spelling: str,
        arguments: bytes,
        *,
        value: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        beside: Beside | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> tuple[Tool, CallResult]:
        """One tool call.

        Args:
            ticket: the request it belongs to.
            spelling: any spelling of the tool's name.
            arguments: the JSON object to send, as bytes.
            value: the same decoded, to be validated before anything is sent; None leaves that to the upstream.
            meta: ``_meta`` members to hand on.
            beside: the client, as far as the upstream may talk to it during the call.
            extra: further members of the params, for a retry with input.

        Returns:
            the tool and its result; a result with ``is_error`` is returned, not raised.

        Raises:
            GatewayError: UNKNOWN_TOOL, INVALID_ARGUMENTS, RATE_LIMITED, or what the upstream raised.
        """
        trace = CallTrace(len(ticket.calls) + 1, spelling[:200])
        ticket.calls.append(trace)
        started = time.perf_counter()
        asked, answer = spelling, ""
        try:
            _still_allowed(ticket)
            tool = self._authorise(ticket.view, spelling)
            trace.tool, trace.upstream, asked = tool.identifier, tool.upstream, tool.direct_name
            if value is not None:
                self._validator.check(tool, value)
            # the last check before dispatch: nothing that fails earlier uses up the tenant's calls
            self._quotas.take_tool_call(ticket.tenant)
            trace.dispatched = True
            CALLER.set(ticket.tenant.name)
            result = await self._upstreams[tool.upstream].call_tool(
                tool.raw_name, arguments, meta=meta, beside=beside, extra=extra
            )
            trace.outcome = ErrorClass.TOOL_ERROR if result.is_error else OK
            answer = result_text(result.content, result.structured)
            return tool, result
        except GatewayError as failed:
            trace.outcome, answer = failed.error_class, failure_text(failed, spelling)
            trace.rpc_error = isinstance(failed, RpcFailed)
            if isinstance(failed, UpstreamFailed) and not failed.delivered:
                self._quotas.return_tool_call(ticket.tenant)
            raise
        except asyncio.CancelledError:
            trace.outcome = ErrorClass.CANCELLED
            raise
        finally:
            trace.ms = (time.perf_counter() - started) * 1000
            _meter(ticket, trace, asked, arguments, answer)
            if trace.dispatched:
                outcome = RPC_ERROR if trace.rpc_error else trace.outcome
                self._metrics.observe_call(trace.upstream, outcome, trace.ms / 1000)

    async def ask(
        self,
        ticket: Ticket,
        upstream: str,
        method: str,
        params: Mapping[str, Any],
        *,
        beside: Beside | None = None,
    ) -> bytes:
        """Any other request to an upstream that the tenant was given whole: its resources, prompts, completion.

        Returns:
            JSON bytes of the result.

        Raises:
            GatewayError: CAPABILITY_DENIED, RATE_LIMITED, or what the upstream raised.
        """
        with self._beside_tools(ticket, upstream, method):
            return await self._upstreams[upstream].request(method, params, beside=beside)

    async def follow(self, ticket: Ticket, upstream: str, uri: str) -> None:
        """Have an upstream tell when a resource changes.

        Raises:
            GatewayError: as for :meth:`ask`.
        """
        with self._beside_tools(ticket, upstream, "resources/subscribe"):
            await self._upstreams[upstream].follow(uri)

    @contextmanager
    def _beside_tools(self, ticket: Ticket, upstream: str, method: str) -> Iterator[None]:
        """What guards and observes every request that is no tool call."""
        _still_allowed(ticket)
        if upstream not in ticket.view.whole:
            raise GatewayError(ErrorClass.CAPABILITY_DENIED, "this tenant may not use that upstream's resources")
        self._quotas.take_tool_call(ticket.tenant)
        CALLER.set(ticket.tenant.name)
        started = time.perf_counter()
        outcome: str = OK
        try:
            yield
        except RpcFailed:
            outcome = RPC_ERROR
            raise
        except GatewayError as failed:
            outcome = failed.error_class
            raise
        finally:
            error_type = "" if outcome == OK else outcome
            self._metrics.observe_client(upstream, method, error_type, time.perf_counter() - started)

    def _authorise(self, view: TenantView, spelling: str) -> Tool:
        """A tool that this tenant may not use answers exactly as one that does not exist."""
        tool = view.resolve(spelling)
        if tool is None:
            near = view.candidates(spelling)
            raise GatewayError(
                ErrorClass.UNKNOWN_TOOL,
                f"no tool named {spelling.strip()[:200]!r}",
                hint=("did you mean " + ", ".join(near) + "?") if near else "find tools with docs_search",
            )
        return tool


def _still_allowed(ticket: Ticket) -> None:
    """A revoked key ends what runs for it at the next call. Raises GatewayError(CAPABILITY_DENIED)."""
    if not ticket.live():
        raise GatewayError(ErrorClass.CAPABILITY_DENIED, "the API key of this request has been revoked or has expired")


def failure_text(failed: GatewayError, name: str) -> str:
    """What a direct client is told about a call of ``name`` that has no result, and so what is metered for it."""
    if isinstance(failed, RpcFailed):
        return failed.message
    if failed.error_class is ErrorClass.UNKNOWN_TOOL:
        return f"Unknown tool: {name[:128]}"
    return f"{failed.error_class}: {failed.message}" + (f"\nhint: {failed.hint}" if failed.hint else "")


def _meter(ticket: Ticket, trace: CallTrace, name: str, arguments: bytes, answer: str) -> None:
    """What direct MCP would have put into the context: the call, and what came back for it."""
    also = (None, None) if ticket.hidden else (Part.CODE_CALL, Part.CODE_RESULT)
    trace.asked = ticket.tally.add(Part.DIRECT_CALL, call_text(name, arguments), also=also[0])
    trace.answered = ticket.tally.add(Part.DIRECT_RESULT, answer, also=also[1])
