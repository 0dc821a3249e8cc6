"""JSON-RPC 2.0 as MCP speaks it: pure functions between bytes and values, no sockets, no clock.

Incoming: :func:`classify` decodes the envelope of one message once and leaves ``params``, ``result`` and ``data`` as
raw JSON. Outgoing: :func:`request`, :func:`notification`, :func:`answer_to` build one line of compact JSON. Parameters
may hold :class:`msgspec.Raw` values; those bytes are copied, never decoded and encoded again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gateway import __version__
from gateway.upstreams.base import LEGACY_VERSIONS, MODERN_VERSION, Beside

METHOD_NOT_FOUND = -32601
LIST_CHANGED = "notifications/tools/list_changed"
PROGRESS = "notifications/progress"
CANCELLED = "notifications/cancelled"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
CLIENT_INFO = {"name": "codemode-gateway", "version": __version__}

_META_VERSION = "io.modelcontextprotocol/protocolVersion"
_META_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
_META_LOG_LEVEL = "io.modelcontextprotocol/logLevel"
_META = {
    _META_VERSION: MODERN_VERSION,
    "io.modelcontextprotocol/clientInfo": CLIENT_INFO,
    _META_CAPABILITIES: {},
}

MessageId = int | str


class RpcError(msgspec.Struct, frozen=True):
    """The ``error`` of a response. ``data`` is decoded JSON, None when absent or not readable."""

    code: int
    message: str
    data: Any = None


class Response(msgspec.Struct, frozen=True):
    """An answer: exactly one of ``result`` (JSON bytes) and ``error`` is set. ``id`` is None when the peer sent
    null."""

    id: MessageId | None
    result: bytes | None = None
    error: RpcError | None = None


class Request(msgspec.Struct, frozen=True):
    """A request of the server to us. ``params`` are JSON bytes, ``b"{}"`` when absent."""

    id: MessageId
    method: str
    params: bytes = b"{}"


class Notification(msgspec.Struct, frozen=True):
    """A message that wants no answer. ``params`` are JSON bytes, ``b"{}"`` when absent."""

    method: str
    params: bytes = b"{}"


class Garbage(msgspec.Struct, frozen=True):
    """Bytes that are no JSON-RPC message.

    Attributes:
        reason: what is wrong with them, without quoting them.
        id: the request they were meant to answer, when they name one; that call can be failed at once.
        is_json: they are a JSON object all the same: a log line, or an answer of a server that knows no JSON-RPC.
    """

    reason: str
    id: MessageId | None = None
    is_json: bool = False


Incoming = Response | Request | Notification | Garbage


# ------------------------------------------------------------------ incoming


class _Envelope(msgspec.Struct):
    jsonrpc: str = ""
    id: int | str | float | msgspec.UnsetType | None = msgspec.UNSET
    method: str | msgspec.UnsetType = msgspec.UNSET
    params: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _ErrorObject(msgspec.Struct):
    code: int
    message: str = ""
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Tag(msgspec.Struct):
    subscription: int | str | None = msgspec.field(default=None, name="io.modelcontextprotocol/subscriptionId")


class _Tagged(msgspec.Struct):
    meta: _Tag = msgspec.field(name="_meta", default_factory=_Tag)


_envelope = msgspec.json.Decoder(_Envelope)
_error_object = msgspec.json.Decoder(_ErrorObject)


def classify(message: bytes) -> Incoming:
    """What one message is. Never raises: what cannot be read is :class:`Garbage`."""
    try:
        if not message.isascii():
            message.decode()  # raw members are copied unread: without this, bytes that are no UTF-8 would travel on
        envelope = _envelope.decode(message)
    except UnicodeDecodeError:
        return Garbage("it is not UTF-8", _named_id(message))
    except RecursionError:
        return Garbage("it is nested too deeply", _named_id(message))
    except msgspec.ValidationError:
        return Garbage("it is not a JSON-RPC message", _named_id(message))
    except msgspec.DecodeError:
        mended = mend_surrogates(message)
        return Garbage("it is not valid JSON", _named_id(message)) if mended == message else classify(mended)
    identity = None if isinstance(envelope.id, (float, msgspec.UnsetType)) else envelope.id
    if envelope.jsonrpc != "2.0":
        return Garbage("it is not a JSON-RPC message", identity if envelope.method is msgspec.UNSET else None, True)
    if envelope.method is not msgspec.UNSET:
        params = b"{}" if envelope.params is msgspec.UNSET else bytes(envelope.params)
        if envelope.id is msgspec.UNSET:
            return Notification(envelope.method, params)
        if identity is None:
            return Garbage("it is a request without a usable id")
        return Request(identity, envelope.method, params)
    if envelope.error is not msgspec.UNSET and bytes(envelope.error) != b"null":
        return Response(identity, error=_read_error(bytes(envelope.error)))
    if envelope.result is not msgspec.UNSET:
        return Response(identity, result=bytes(envelope.result))
    return Garbage("it is neither request nor response", identity, True)


def subscription_of(params: bytes) -> MessageId | None:
    """The id of the ``subscriptions/listen`` request to which a notification of the modern era belongs."""
    try:
        meta = msgspec.json.decode(params, type=_Tagged).meta
    except (msgspec.DecodeError, RecursionError):
        return None
    return meta.subscription


def same_id(got: MessageId | None, asked: int) -> bool:
    """Whether an answer's id means the request ``asked``. Some servers send numbers back as strings."""
    return got == asked or got == str(asked)


def _read_error(raw: bytes) -> RpcError:
    try:
        error = _error_object.decode(raw)
        data = None if error.data is msgspec.UNSET else msgspec.json.decode(error.data)
    except (msgspec.DecodeError, RecursionError):
        return RpcError(-32603, "the upstream answered with a malformed error")
    return RpcError(error.code, error.message or f"the upstream gave no message (code {error.code})", data)


# The id stands at one of the two ends of the usual layouts, at the top level. Looking for `"id"` anywhere would take
# the id of a record inside the result for the id of the call. Quantifiers are bounded: the text is hostile.
_ID = rb'"id"\s{0,4}:\s{0,4}(?:(\d{1,18})|"([^"\\]{1,64})")'
_VERSION = rb'"jsonrpc"\s{0,4}:\s{0,4}"2\.0"'
_HEAD_ID = re.compile(
    rb"\s{0,64}\{\s{0,4}(?:" + _VERSION + rb"\s{0,4},\s{0,4})?" + _ID + rb'\s{0,4},(?!\s{0,4}"method")'
)
_TAIL_ID = re.compile(_ID + rb"\s{0,4}(?:,\s{0,4}" + _VERSION + rb"\s{0,4})?\}\s{0,64}$")


def _named_id(message: bytes) -> MessageId | None:
    found = _HEAD_ID.match(message[:512]) or _TAIL_ID.search(message[-256:])
    if not found:
        return None
    number, text = found.groups()
    return int(number) if number else str(text, "utf-8", "replace")


_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


def mend_surrogates(text: bytes) -> bytes:
    r"""JSON with each lone surrogate escape (``\ud83d`` without its other half) replaced by ``\ufffd``.

    JavaScript servers send them whenever they cut a text in the middle of an emoji; no strict parser takes them.
    """
    if b"\\ud" not in text and b"\\uD" not in text:
        return text
    return _ESCAPE.sub(lambda found: b"\\ufffd" if found.group(1) else found.group(0), text)


# ------------------------------------------------------------------ outgoing


def request(message_id: int, method: str, params: Mapping[str, Any]) -> bytes:
    """One request as one line of JSON, without the line's end."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": message_id, "method": method, "params": params})


def notification(method: str, params: Mapping[str, Any] | None = None) -> bytes:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params:
        message["params"] = params
    return msgspec.json.encode(message)


def cancelled(message_id: int) -> bytes:
    """Tells the server to stop working on a request whose answer nobody waits for."""
    return notification(CANCELLED, {"requestId": message_id, "reason": "the caller no longer waits"})


def answer_to(incoming: Request) -> bytes:
    """Our own answer to a request of the server, when nobody else answers it.

    ``roots/list`` gets the empty list rather than an error: it is true, and servers that ask without looking at our
    capabilities go on working.
    """
    known: dict[str, Any] = {"ping": {}, "roots/list": {"roots": []}}
    if incoming.method in known:
        return result(incoming, msgspec.json.encode(known[incoming.method]))
    return refusal(incoming, METHOD_NOT_FOUND, "the gateway serves no such request")


def result(incoming: Request, raw: bytes) -> bytes:
    """The answer to a request of the server. ``raw``: JSON bytes of the result."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": incoming.id, "result": msgspec.Raw(raw)})


def refusal(incoming: Request, code: int, message: str) -> bytes:
    """The answer to a request of the server that gets no result."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": incoming.id, "error": {"code": code, "message": message}})


def initialize_params(capabilities: Iterable[str] = ()) -> dict[str, Any]:
    """Parameters of the legacy handshake, asking for the newest legacy version.

    Args:
        capabilities: names of client capabilities to declare.
    """
    declared: dict[str, Any] = {name: {} for name in capabilities}
    return {"protocolVersion": LEGACY_VERSIONS[-1], "capabilities": declared, "clientInfo": CLIENT_INFO}


def modern_params(
    params: Mapping[str, Any] | bytes, beside: Beside | None = None, token: int | None = None
) -> dict[str, Any]:
    """``params`` with the ``_meta`` that every modern request carries, merged into the caller's own ``_meta``.

    Args:
        beside: declares its capabilities and asks for log messages with this request.
        token: for progress.
    """
    merged = legacy_params(params, token)
    meta = _META
    if beside is not None:
        meta = {**_META, _META_CAPABILITIES: beside.capabilities}
        if beside.log_level is not None:
            meta[_META_LOG_LEVEL] = beside.log_level
    own = _own_meta(merged)
    merged["_meta"] = {**own, **meta} if own else meta
    return merged


_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def legacy_params(params: Mapping[str, Any] | bytes, token: int | None = None) -> dict[str, Any]:
    """``params`` as a mapping whose values, when it came as JSON bytes, stay raw. ``token``: for progress."""
    read = _members(params) if isinstance(params, bytes) else params
    merged: dict[str, Any] = dict(read)
    if token is not None:
        merged["_meta"] = {**_own_meta(merged), "progressToken": token}
    return merged


def _own_meta(params: Mapping[str, Any]) -> Mapping[str, Any]:
    own = params.get("_meta")
    if isinstance(own, msgspec.Raw):
        own = msgspec.json.decode(own)
    return own or {}
