"""Resources, prompts and completion of all upstreams a tenant may use whole, as if one server offered them.

Lists are asked for when they are asked for, from all upstreams at once: they change without notice, and a client of
the direct endpoint shall see what it would see without us. An upstream that does not answer is left out of a list; a
request that names something of it fails with its error. Prompts go by ``<prefix><name>`` like tools; URIs are the
upstream's own, since a client may build them from templates, so the owner of a URI is looked up.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.errors import GatewayError
from gateway.facade.base import Refused

Ask = Callable[[str, str, Mapping[str, Any]], Awaitable[bytes]]
"""``await ask(upstream, method, params)`` → JSON bytes of the result; raises GatewayError."""

KINDS: Mapping[str, str] = {
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}
"""List method → the member of its result that holds the entries."""
CAPABILITY: Mapping[str, str] = {
    "resources/list": "resources",
    "resources/templates/list": "resources",
    "prompts/list": "prompts",
}
MAX_PAGES = 200
MAX_ENTRIES = 10_000
_NO_METHOD = -32601

Entry = dict[str, Any]
_page = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class Source:
    """One upstream of the view.

    Attributes:
        name: in the config.
        prefix: of the names of its prompts.
        capabilities: what it said it can do.
        era: which protocol it speaks.
    """

    name: str
    prefix: str
    capabilities: Mapping[str, Any]
    era: str = "modern"


class Features:
    """The federated lists of one request.

    Args:
        sources: upstreams that can be asked, in the order of their names.
        ask: the way to an upstream.
    """

    def __init__(self, sources: Sequence[Source], ask: Ask) -> None:
        self._sources = sources
        self._ask = ask

    async def entries(self, method: str) -> list[Entry]:
        """The entries of one kind of all upstreams, in the order of the sources; prompts under the names shown here."""
        able = [source for source in self._sources if CAPABILITY[method] in source.capabilities]
        lists = await asyncio.gather(*(self._all_pages(source, method) for source in able))
        shown: dict[str, Entry] = {}
        for source, entries in zip(able, lists, strict=True):
            for entry in entries:
                key = _key(method, entry)
                if method == "prompts/list":
                    key = source.prefix + key
                    entry = {**entry, "name": key}
                # the first upstream keeps a name or URI that two offer: a request for it goes there too
                shown.setdefault(key, entry)
        return list(shown.values())

    async def prompt_owner(self, shown: str) -> tuple[Source, str]:
        """The upstream of a prompt, and its own name there. Raises Refused."""
        able = [source for source in self._sources if "prompts" in source.capabilities]
        fitting = [(source, shown[len(source.prefix) :]) for source in able if shown.startswith(source.prefix)]
        for source, name in fitting:
            if any(_key("prompts/list", entry) == name for entry in await self._all_pages(source, "prompts/list")):
                return source, name
        raise Refused("invalid_params", f"Unknown prompt: {shown[:128]}")

    async def resource_owner(self, uri: str) -> Source:
        """The upstream that serves a URI: the one that lists it, else one with a template for it, else the only one.

        Raises:
            Refused: none does (2026-07-28: resource not found is -32602).
        """
        able = [source for source in self._sources if "resources" in source.capabilities]
        if len(able) == 1:
            return able[0]
        for method, fits in (("resources/list", _is), ("resources/templates/list", _matches)):
            lists = await asyncio.gather(*(self._all_pages(source, method) for source in able))
            for source, entries in zip(able, lists, strict=True):
                if any(fits(_key(method, entry), uri) for entry in entries):
                    return source
        raise Refused("invalid_params", f"Resource not found: {uri[:256]}", data={"uri": uri[:256]})

    async def _all_pages(self, source: Source, method: str) -> list[Entry]:
        """All usable entries; none when the upstream fails, since one must not spoil the list of the others."""
        found: list[Entry] = []
        cursor: str | None = None
        seen: set[str] = set()
        for _ in range(MAX_PAGES):
            try:
                raw = await self._ask(source.name, method, {} if cursor is None else {"cursor": cursor})
                page = _page.decode(raw)
            except (GatewayError, msgspec.DecodeError, RecursionError):
                break
            entries = page.get(KINDS[method])
            found += [entry for entry in entries or () if isinstance(entry, dict) and _key(method, entry)]
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or cursor in seen or len(found) >= MAX_ENTRIES:
                break
            seen.add(cursor)
        return found[:MAX_ENTRIES]


def _key(method: str, entry: Entry) -> str:
    """What an entry is named by; "" when it has no name."""
    member = {"resources/list": "uri", "resources/templates/list": "uriTemplate", "prompts/list": "name"}[method]
    key = entry.get(member)
    return key if isinstance(key, str) else ""


def _is(listed: str, uri: str) -> bool:
    return listed == uri


def _matches(template: str, uri: str) -> bool:
    """Whether a URI can come from an RFC 6570 template: every expression may stand for any text without a break.

    Linear: literals are searched for one after another, no expression of an upstream is run.
    """
    literals = re.split(r"\{[^{}]{0,200}\}", template[:2_000])
    first, rest = literals[0], literals[1:]
    if not rest:
        return template == uri
    if not uri.startswith(first) or not uri.endswith(rest[-1]):
        return False
    at = len(first)
    for literal in rest[:-1]:
        found = uri.find(literal, at)
        if found < 0:
            return False
        at = found + len(literal)
    return len(uri) - len(rest[-1]) >= at
