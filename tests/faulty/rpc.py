"""JSON-RPC as bytes: reading a message without losing its text, and bodies that need not exist in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022

CHUNK = 64 * 1024
_decoder = json.JSONDecoder()


class Refusal(Exception):
    """A request that is answered with a JSON-RPC error; ``data`` is JSON bytes or None."""

    def __init__(self, code: int, message: str, data: bytes | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


@dataclass(frozen=True, slots=True)
class Body:
    """Bytes to send: ``head``, then ``fill`` times the letter x, then ``tail``. Two gigabytes cost nothing."""

    head: bytes
    fill: int = 0
    tail: bytes = b""

    def __len__(self) -> int:
        return len(self.head) + self.fill + len(self.tail)

    def wrapped(self, before: bytes, after: bytes) -> Body:
        if not self.fill:
            return Body(before + self.head + self.tail + after)
        return Body(before + self.head, self.fill, self.tail + after)

    def replaced(self, old: bytes, new: bytes) -> Body:
        return Body(self.head.replace(old, new), self.fill, self.tail.replace(old, new))

    def chunks(self, limit: int | None = None) -> Iterator[bytes]:
        """The bytes in pieces; only the first ``limit`` of them when given."""
        left = len(self) if limit is None else limit
        for piece in self._pieces():
            if left <= 0:
                return
            yield piece[:left]
            left -= len(piece)

    def _pieces(self) -> Iterator[bytes]:
        for start in range(0, len(self.head), CHUNK):
            yield self.head[start : start + CHUNK]
        block = b"x" * min(CHUNK, self.fill)
        for start in range(0, self.fill, CHUNK):
            yield block[: self.fill - start]
        for start in range(0, len(self.tail), CHUNK):
            yield self.tail[start : start + CHUNK]


@dataclass(frozen=True, slots=True)
class Message:
    """One JSON-RPC message on its way out; ``final`` ends the answer; ``status`` is HTTP's, if it comes to that."""

    body: Body
    final: bool = True
    status: int = 200


@dataclass(frozen=True, slots=True)
class Incoming:
    """One JSON-RPC message that came in. Values are kept as the text received wherever somebody may compare them.

    Attributes:
        method: None for a response to one of our own requests.
        id: JSON text of the id, None for a notification.
        params: member name → JSON text.
        meta: ``params._meta``, parsed.
        problem: why it is no message, or None.
    """

    method: str | None = None
    id: str | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    problem: Refusal | None = None

    @property
    def name(self) -> str | None:
        """``params.name`` when it is a string."""
        name = json.loads(self.params.get("name", "null"))
        return name if isinstance(name, str) else None

    @property
    def is_request(self) -> bool:
        return self.method is not None and self.id is not None


def read(raw: bytes) -> Incoming:
    """Parse one message; what is wrong with it is in ``problem``. Never raises."""
    try:
        text = raw.decode("utf-8")
        value = json.loads(text)
    except (ValueError, RecursionError):
        return Incoming(problem=Refusal(PARSE_ERROR, "Parse error"))
    if not isinstance(value, dict):
        return Incoming(problem=Refusal(INVALID_REQUEST, "Invalid Request: a message is one JSON object"))
    texts = members(text)
    identity, method, params = value.get("id"), value.get("method"), value.get("params", {})
    known_id = texts.get("id") if _is_id(identity) else None
    if value.get("jsonrpc") != "2.0" or not isinstance(params, dict) or ("id" in value and known_id is None):
        return Incoming(id=known_id, problem=Refusal(INVALID_REQUEST, "Invalid Request"))
    if method is None and ("result" in value or "error" in value):
        return Incoming(id=known_id)
    if not isinstance(method, str):
        return Incoming(id=known_id, problem=Refusal(INVALID_REQUEST, "Invalid Request: no method"))
    meta = params.get("_meta", {})
    return Incoming(
        method,
        known_id,
        members(texts["params"]) if "params" in texts else {},
        meta if isinstance(meta, dict) else {},
    )


def members(text: str) -> dict[str, str]:
    """The members of the JSON object that ``text`` is: name → text of the value; of duplicates the last."""
    found: dict[str, str] = {}
    position = _skip(text, _skip(text, 0) + 1)
    while text[position] != "}":
        name, end = _decoder.raw_decode(text, position)
        start = _skip(text, _skip(text, end) + 1)
        _, end = _decoder.raw_decode(text, start)
        found[name] = text[start:end]
        position = _skip(text, end)
        if text[position] == ",":
            position = _skip(text, position + 1)
    return found


def elements(text: str) -> list[str]:
    """The elements of the JSON array that ``text`` is, as text.

    Raises:
        ValueError: it is no array.
    """
    if not isinstance(json.loads(text), list):
        raise ValueError("not a JSON array")
    found = []
    position = _skip(text, _skip(text, 0) + 1)
    while text[position] != "]":
        _, end = _decoder.raw_decode(text, position)
        found.append(text[position:end])
        position = _skip(text, end)
        if text[position] == ",":
            position = _skip(text, position + 1)
    return found


def dumps(value: Any) -> bytes:
    """Compact JSON, UTF-8; escapes only what UTF-8 cannot carry."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return json.dumps(value, separators=(",", ":")).encode()


def result(identity: str, body: Body) -> Body:
    return body.wrapped(b'{"jsonrpc":"2.0","id":%b,"result":' % identity.encode(), b"}")


def error(identity: str | None, refusal: Refusal) -> Body:
    data = b"" if refusal.data is None else b',"data":' + refusal.data
    text = b'{"jsonrpc":"2.0","id":%b,"error":{"code":%d,"message":%b%b}}'
    return Body(text % ((identity or "null").encode(), refusal.code, dumps(refusal.message), data))


def notification(method: str, params: Mapping[str, Any] | None = None) -> Body:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    return Body(dumps(message if params is None else {**message, "params": params}))


def request(identity: str, method: str, params: Mapping[str, Any]) -> Body:
    return Body(dumps({"jsonrpc": "2.0", "id": identity, "method": method, "params": params}))


def _is_id(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position
