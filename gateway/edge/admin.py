"""The operator's listener: health, metrics and the API behind the console. Never reachable with a tenant's key.

Off loopback every path but ``/livez`` and ``/readyz`` needs the admin token. Not on the hot path, so it is plain
Starlette.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.edge.http import Authorities, Headers, HttpRefused, Receive, Scope, Send, send_refusal
from gateway.metering.metrics import Metrics

OPEN_PATHS = frozenset({"/livez", "/readyz"})


@dataclass(frozen=True, slots=True)
class Operations:
    """What the operator may ask, supplied by the composition root.

    Attributes:
        ready: what still keeps the gateway from being ready; empty when it is. An upstream that is down does not.
        upstreams: one mapping an upstream: name, state, stage, reason, era, tools, …
        tenants: one mapping a tenant: name, mode, tools, tokens of its list in both modes.
        usage: (tenant or None, since as Unix time) → usage summaries.
    """

    ready: Callable[[], Sequence[str]]
    upstreams: Callable[[], Sequence[Mapping[str, Any]]]
    tenants: Callable[[], Sequence[Mapping[str, Any]]]
    usage: Callable[[str | None, float], Awaitable[Sequence[Mapping[str, Any]]]]


def admin_app(operations: Operations, metrics: Metrics) -> Starlette:
    """The routes of the admin listener, without its guard."""

    async def livez(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> Response:
        waiting = list(operations.ready())
        states = {row["name"]: row["state"] for row in operations.upstreams()}
        status = {"status": "waiting" if waiting else "ok", "waitingFor": waiting, "upstreams": states}
        return JSONResponse(status, status_code=503 if waiting else 200)

    async def page(request: Request) -> Response:
        body, kind = await metrics.page(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": kind})

    async def upstreams(request: Request) -> Response:
        return JSONResponse({"upstreams": list(operations.upstreams())})

    async def tenants(request: Request) -> Response:
        return JSONResponse({"tenants": list(operations.tenants())})

    async def usage(request: Request) -> Response:
        since = request.query_params.get("since", "0")
        try:
            start = float(since)
        except ValueError:
            return JSONResponse({"error": "since must be a Unix time in seconds"}, status_code=400)
        return JSONResponse({"usage": list(await operations.usage(request.query_params.get("tenant"), start))})

    return Starlette(
        routes=[
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/metrics", page),
            Route("/api/upstreams", upstreams),
            Route("/api/tenants", tenants),
            Route("/api/usage", usage),
        ]
    )


class AdminGuard:
    """Host, Origin and token in front of the admin routes.

    Args:
        app: the routes.
        authorities: accepted Host and Origin values.
        token: the admin token, or "" on loopback.
    """

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        authorities: Callable[[], Authorities],
        token: str,
    ) -> None:
        self._app = app
        self._authorities = authorities
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope["headers"])
            try:
                self._authorities().check(headers)
                if self._token and scope["path"] not in OPEN_PATHS:
                    self._check_token(headers)
            except HttpRefused as refused:
                await send_refusal(send, refused)
                return
        await self._app(scope, receive, send)

    def _check_token(self, headers: Headers) -> None:
        scheme, _, given = (headers.get(b"authorization") or "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode("latin-1"), self._token):
            raise HttpRefused(401, "the admin token is required", ((b"www-authenticate", b"Bearer"),))
