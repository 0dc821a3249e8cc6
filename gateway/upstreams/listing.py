"""Reading an upstream's list of tools, all pages of it.

Cursors are opaque and sent back as they came; only an absent or null cursor ends the list (an empty one is valid). What
is no usable tool is dropped and counted, it never spoils the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.upstreams.base import Connector, RpcFailed, ServerInfo, UpstreamFailed, UpstreamTimedOut
from gateway.upstreams.rpc import METHOD_NOT_FOUND

log = logging.getLogger("gateway.upstreams")

MAX_PAGES = 1000
MAX_LIST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RawTool:
    """One tool as its upstream published it.

    Attributes:
        name: the upstream's own name for it.
        definition: the whole object, unknown keys too. Treat it as immutable.
    """

    name: str
    definition: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Listing:
    """The tools in the upstream's order, and how many entries were unusable or came twice."""

    tools: tuple[RawTool, ...]
    dropped: int = 0


class _Page(msgspec.Struct):
    tools: list[Any]
    cursor: str | None = msgspec.field(default=None, name="nextCursor")


_page = msgspec.json.Decoder(_Page)


async def list_tools(connector: Connector, upstream: str, info: ServerInfo, timeout_s: float) -> Listing:
    """Read the whole list.

    Args:
        upstream: for the errors.
        info: a server that does not claim to have tools may answer that it knows no ``tools/list``.
        timeout_s: for all pages together, seconds.

    Raises:
        UpstreamFailed, UpstreamTimedOut, RpcFailed
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    entries: list[Any] = []
    cursor: str | None = None
    seen: set[str] = set()
    size = 0
    for _ in range(MAX_PAGES):
        left = deadline - loop.time()
        if left <= 0:
            raise UpstreamTimedOut(upstream, "tools/list", timeout_s)
        params = {} if cursor is None else {"cursor": cursor}
        try:
            raw = await connector.request("tools/list", params, left)
        except UpstreamTimedOut:
            raise UpstreamTimedOut(upstream, "tools/list", timeout_s) from None
        except RpcFailed as error:
            if error.code == METHOD_NOT_FOUND and cursor is None and "tools" not in info.capabilities:
                return Listing(())
            raise
        size += len(raw)
        if size > MAX_LIST_BYTES:
            raise _unusable(upstream, f"its list of tools is larger than {MAX_LIST_BYTES >> 20} MiB")
        try:
            page = _page.decode(raw)
        except (msgspec.DecodeError, RecursionError):
            raise _unusable(upstream, "its answer holds no list of tools that can be read") from None
        entries += page.tools
        cursor = page.cursor
        if cursor is None:
            return _listing(connector, upstream, entries)
        if cursor in seen:
            raise _unusable(upstream, "its list of tools goes round in a circle: a cursor came twice")
        seen.add(cursor)
    raise _unusable(upstream, f"its list of tools has more than {MAX_PAGES} pages")


def _listing(connector: Connector, upstream: str, entries: list[Any]) -> Listing:
    tools: dict[str, RawTool] = {}
    left_out: list[str] = []
    for position, entry in enumerate(entries, 1):
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not name:
            left_out.append(f"number {position} has no name")
        elif name in tools:
            left_out.append(f"{name[:80]!a} comes twice")
        else:
            tools[name] = RawTool(name, entry)
    for name, reason in connector.plan_calls([tool.definition for tool in tools.values()]).items():
        del tools[name]
        left_out.append(f"{name[:80]!a} cannot be called: {reason}")
    if left_out:
        shown = ", ".join(left_out[:5]) + (", …" if len(left_out) > 5 else "")
        log.warning("upstream %s: %d entries of its list of tools are left out: %s", upstream, len(left_out), shown)
    return Listing(tuple(tools.values()), len(left_out))


def _unusable(upstream: str, reason: str) -> UpstreamFailed:
    return UpstreamFailed(upstream, "list", reason)
