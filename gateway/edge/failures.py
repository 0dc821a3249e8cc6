"""What a client is told when its request fails: one table from exceptions to an HTTP status and a JSON-RPC error.

Pure: no IO, no state. Whatever is not in the table is a fault of ours, of which the client learns a name to quote and
nothing else.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from gateway.edge.eras import Era, error_status
from gateway.edge.http import HttpRefused, refusal_body
from gateway.edge.wire import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    RequestId,
    WireError,
    error_bytes,
)
from gateway.errors import ErrorClass, GatewayError
from gateway.facade.base import Refused

LIMIT_CODE = 429
"""JSON-RPC code of a limit hit outside a tool call: an own code, outside the reserved range."""
FORBIDDEN_CODE = 403
STOPPING = "the gateway is shutting down; what was still running has been cancelled"
"""For requests that the HTTP server cancels, which it does once, at the end of its grace."""


class Failure(NamedTuple):
    """An answer. ``error_type`` is a metric label; ``status`` and ``headers`` count unless a stream has begun."""

    error_type: str
    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


def failure_of(error: BaseException, request_id: RequestId | None, era: Era) -> Failure | None:
    """The answer to a request that ended with this, or None for what nobody has foreseen.

    Args:
        request_id: None when there is no request, or it could not be read: the answer's ``id`` is null then.
    """
    match error:
        case WireError():
            return Failure(str(error.code), error_status(era, error.code), error_bytes(request_id, error))
        case HttpRefused():
            return Failure(str(error.status), error.status, refusal_body(error), error.headers)
        case Refused():
            return _refused(error, request_id, era)
        case GatewayError():
            return _failed(error, request_id)
        case asyncio.CancelledError():
            return Failure(ErrorClass.CANCELLED, 503, error_bytes(request_id, WireError(INTERNAL_ERROR, STOPPING)))
    return None


def unexpected(name: str, request_id: RequestId | None, era: Era) -> Failure:
    """The answer to what :func:`failure_of` does not know. ``name``: under which it is in our log."""
    internal = WireError(INTERNAL_ERROR, f"Internal error (request {name})")
    status = 500 if request_id is None else error_status(era, internal.code)
    return Failure("internal", status, error_bytes(request_id, internal))


def _refused(refused: Refused, request_id: RequestId | None, era: Era) -> Failure:
    """A missing scope is 403 with the challenge of RFC 6750 section 3.1; our own refusals are -32602 or -32601."""
    if refused.reason == "forbidden":
        challenge = f'Bearer error="insufficient_scope", scope="{refused.scope}"'.encode()
        body = error_bytes(request_id, WireError(FORBIDDEN_CODE, refused.message))
        return Failure(refused.reason, 403, body, ((b"www-authenticate", challenge),))
    if refused.code is not None:
        # An upstream's code says nothing about this exchange: its "method not found" must not read as our 404. But what
        # our client did not declare is about this client, and is 400 whoever misses it.
        code, status = refused.code, error_status(era, refused.code) if refused.code == MISSING_CAPABILITY else 200
    else:
        code = METHOD_NOT_FOUND if refused.reason == "unknown_method" else INVALID_PARAMS
        status = error_status(era, code)
    return Failure(refused.reason, status, error_bytes(request_id, WireError(code, refused.message, refused.data)))


def _failed(failed: GatewayError, request_id: RequestId | None) -> Failure:
    """A limit outside a tool call: 429 with Retry-After (RFC 6585). Other failures are 503."""
    limited = failed.error_class in (ErrorClass.RATE_LIMITED, ErrorClass.QUOTA_EXCEEDED)
    data = {"class": failed.error_class, "retryAfter": failed.retry_after_s}
    body = error_bytes(request_id, WireError(LIMIT_CODE if limited else INTERNAL_ERROR, str(failed), data))
    retry = ((b"retry-after", b"%d" % max(1, round(failed.retry_after_s or 1))),)
    return Failure(failed.error_class, 429 if limited else 503, body, retry)
