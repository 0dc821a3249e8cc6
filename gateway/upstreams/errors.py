"""An upstream's JSON-RPC error as a tenant may read it: without the upstream's credentials."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.upstreams.base import RpcFailed
from gateway.upstreams.redact import Redactor
from gateway.upstreams.rpc import RpcError


def rpc_failed(upstream: str, error: RpcError, redactor: Redactor) -> RpcFailed:
    """The typed failure; secrets of the configuration are masked in its message and in every text of its data."""
    return RpcFailed(upstream, error.code, redactor.hide(error.message), _hidden(error.data, redactor))


def _hidden(data: Any, redactor: Redactor) -> Any:
    if data is None:
        return None
    text = msgspec.json.encode(data).decode()
    masked = redactor.hide(text)
    if masked == text:
        return data
    try:
        return msgspec.json.decode(masked)
    except msgspec.DecodeError:
        return None  # the secret was part of the structure; rather nothing than half of it
