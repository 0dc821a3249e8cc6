"""Where an HTTP upstream is, and the heads of the requests that go there. Pure; no sockets.

Credentials may stand in the URL (user part, query) and in the configured headers. They are used, never shown:
:attr:`Target.secrets` is what a redactor needs to know.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec

from gateway.upstreams.base import MODERN_VERSION

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PLAIN = re.compile(r"[\x20-\x7e]*")
_OWN = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "connection", "accept", "accept-encoding",
     "mcp-protocol-version", "mcp-session-id", "mcp-method", "mcp-name", "last-event-id"}
)  # fmt: skip
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}  # what Mcp-Name mirrors


class BadTarget(Exception):
    """The URL or a header cannot be used. The text names the fault, never the value."""


@dataclass(frozen=True, slots=True)
class Target:
    """One parsed URL with the configured headers.

    Attributes:
        path: path and query as they go on the wire.
        authority: for the ``Host`` header, and for the operator's eyes.
        head: the configured headers as bytes, one per line.
        secrets: every text in the URL and the headers that may be a credential.
    """

    tls: bool
    host: str
    port: int
    authority: str
    path: str = field(repr=False)
    head: bytes = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)


def parse_target(url: str, headers: Mapping[str, str]) -> Target:
    """Read the configuration of an HTTP upstream.

    Raises:
        BadTarget
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise BadTarget("its URL cannot be read") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadTarget("its URL has no host")
    host = parts.hostname
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError:
            raise BadTarget("the host of its URL is no valid name") from None
    try:
        "".join([url, *headers, *headers.values()]).encode()
    except UnicodeEncodeError:
        raise BadTarget("its URL or a configured header holds half a character") from None
    tls = parts.scheme == "https"
    shown = f"[{host}]" if ":" in host else host
    lines = [_header_line(name, value) for name, value in headers.items() if name.lower() not in _OWN]
    given = {name.lower() for name in headers}
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if (user or password) and "authorization" not in given:
        lines.append(_header_line("Authorization", "Basic " + _base64(f"{user}:{password}")))
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    if parts.query:
        path += "?" + quote(parts.query, safe="/?%:@!$&'()*+,;=~-._[]{}|")
    query = [value for _, value in parse_qsl(parts.query, keep_blank_values=True)]
    # Hosted servers put keys into the path too; words of it are too short to be one.
    segments = [segment for segment in parts.path.split("/") if len(segment) >= 16]
    return Target(
        tls=tls,
        host=host,
        port=port or (443 if tls else 80),
        authority=f"{shown}:{port}" if port else shown,
        path=path,
        head="".join(lines).encode(),
        secrets=tuple(filter(None, [*headers.values(), user, password, parts.query, *query, *segments])),
    )


def request_head(target: Target, method: str, own: Mapping[str, str], length: int | None) -> bytes:
    """Request line and headers of one request, with the empty line.

    Args:
        own: the headers that the protocol asks for; values are encoded here where they need it.
        length: bytes of the body; None for a request without one.
    """
    lines = [
        f"{method} {target.path} HTTP/1.1\r\nhost: {target.authority}\r\n"
        "accept: application/json, text/event-stream\r\naccept-encoding: identity\r\n"
    ]
    if length is not None:
        lines.append(f"content-type: application/json\r\ncontent-length: {length}\r\n")
    lines += [f"{name}: {encode_value(value)}\r\n" for name, value in own.items()]
    return "".join(lines).encode("ascii") + target.head + b"\r\n"


@dataclass(frozen=True, slots=True)
class Session:
    """A legacy session. ``id`` is "" when the server gave none."""

    id: str
    version: str

    def headers(self) -> dict[str, str]:
        """What every request of the session carries."""
        own = {"mcp-protocol-version": self.version}
        return own | {"mcp-session-id": self.id} if self.id else own


def modern_headers(method: str, params: Mapping[str, Any]) -> dict[str, str]:
    """What a request of the modern era carries; ``mcp-name`` for those that name something."""
    headers = {"mcp-protocol-version": MODERN_VERSION, "mcp-method": method}
    if method in _NAMED:
        name = params.get(_NAMED[method], "")
        headers["mcp-name"] = str(msgspec.json.decode(name) if isinstance(name, msgspec.Raw) else name)
    return headers


def encode_value(value: str) -> str:
    """A header value as MCP wants it: plain printable ASCII as it is, everything else ``=?base64?…?=``.

    Edge whitespace would be stripped on the way, and text that looks encoded would be decoded, so both are encoded too.
    """
    if _PLAIN.fullmatch(value) and value == value.strip() and not value.startswith("=?base64?"):
        return value
    return f"=?base64?{_base64(value)}?="


def _base64(text: str) -> str:
    return base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


def _header_line(name: str, value: str) -> str:
    if not _TOKEN.fullmatch(name):
        raise BadTarget("a configured header has a name that HTTP does not allow")
    value = value.strip()  # tokens from files end in a line break
    if any(char in value for char in "\r\n\0"):
        raise BadTarget(f"the value of the configured header {name} has a line break in it")
    return f"{name}: {value}\r\n"
