"""Resources, prompts and completion of all upstreams a tenant may use whole, as if one server offered them.

Lists are asked for when they are asked for, from all upstreams at once: they change without notice, and a client of
the direct endpoint shall see what it would see without us. An upstream that does not answer is left out of a list; a
request that names something of it fails with its error.

Prompts go by ``<prefix><name>`` like tools. URIs are the upstream's own, since a client may build them from templates,
so the owner of a URI is looked up. What two upstreams offer under one name or URI stays with the first of them; that
of the other is shown as ``<upstream>__<name>``, or as ``codemode-gateway://<upstream>/<its own URI or template>``.
Requests may use these longer forms for everything, also where nothing collides.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.errors import ErrorClass, GatewayError
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
_MEMBER: Mapping[str, str] = {
    "resources/list": "uri",
    "resources/templates/list": "uriTemplate",
    "prompts/list": "name",
}
"""List method → the member of an entry that names it."""
SCHEME = "codemode-gateway://"
MAX_PAGES = 200
LIMITS = (ErrorClass.RATE_LIMITED, ErrorClass.QUOTA_EXCEEDED)
MAX_ENTRIES = 10_000

Entry = dict[str, Any]
_VARIABLE = re.compile(r"\{[^{}]{0,200}\}")
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


@dataclass(frozen=True, slots=True)
class Owned:
    """A resource, or a template, and whose it is.

    Attributes:
        source: the upstream.
        uri: its own URI.
        prefix: what the client put before it; "" when it used the upstream's own.
    """

    source: Source
    uri: str
    prefix: str = ""


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
        """The entries of one kind of all upstreams, in the order of the sources, each under the name shown here."""
        shown: dict[str, Entry] = {}
        taken: set[str] = set()
        beaten: list[tuple[Source, str, Entry]] = []
        for source, entries in await self._lists(method):
            for own, entry in entries.items():
                name = source.prefix + own if method == "prompts/list" else own
                means = _VARIABLE.sub("{}", name) if method == "resources/templates/list" else name
                if means in taken or name.startswith(SCHEME):
                    beaten.append((source, own, entry))
                else:
                    taken.add(means)
                    shown[name] = entry
        # only now, so that no longer form takes the name that something has by itself
        for source, own, entry in beaten:
            shown.setdefault(f"{source.name}__{own}" if method == "prompts/list" else _long(source) + own, entry)
        return [{**entry, _MEMBER[method]: name} for name, entry in shown.items()]

    async def prompt_owner(self, shown: str) -> tuple[Source, str]:
        """The upstream of a prompt, and its own name there. Raises Refused."""
        able = self._able("prompts")
        usual = [(source, source.prefix) for source in able]
        longer = [(source, f"{source.name}__") for source in able if source.prefix != f"{source.name}__"]
        for source, prefix in usual + longer:
            own = shown.removeprefix(prefix)
            if shown.startswith(prefix) and own in await self._all_pages(source, "prompts/list"):
                return source, own
        raise Refused("invalid_params", f"Unknown prompt: {shown[:128]}")

    async def resource_owner(self, uri: str) -> Owned:
        """Whose a URI is, or a template: that upstream's that lists it, else whose template fits best, else the only
        one's.

        Raises:
            Refused: none serves it (2026-07-28: resource not found is -32602).
        """
        able = self._able("resources")
        for source in able:
            if uri.startswith(_long(source)):
                return Owned(source, uri.removeprefix(_long(source)), _long(source))
        if len(able) == 1:
            return Owned(able[0], uri)
        for source, entries in await self._lists("resources/list"):
            if uri in entries:
                return Owned(source, uri)
        fitting = [
            (template == uri, len(_VARIABLE.sub("", template)), source)
            for source, entries in await self._lists("resources/templates/list")
            for template in entries
            if template == uri or _matches(template, uri)
        ]
        if fitting:
            return Owned(max(fitting, key=lambda found: found[:2])[2], uri)
        raise Refused("invalid_params", f"Resource not found: {uri[:256]}", data={"uri": uri[:256]})

    def _able(self, capability: str) -> list[Source]:
        return [source for source in self._sources if capability in source.capabilities]

    async def _lists(self, method: str) -> list[tuple[Source, dict[str, Entry]]]:
        able = self._able(CAPABILITY[method])
        lists = await asyncio.gather(*(self._all_pages(source, method) for source in able))
        return list(zip(able, lists, strict=True))

    async def _all_pages(self, source: Source, method: str) -> dict[str, Entry]:
        """Own name or URI → entry; empty when the upstream fails, since one must not spoil the list of the others."""
        found: dict[str, Entry] = {}
        cursor: str | None = None
        seen: set[str] = set()
        for _ in range(MAX_PAGES):
            try:
                raw = await self._ask(source.name, method, {} if cursor is None else {"cursor": cursor})
                page = _page.decode(raw)
            except GatewayError as failed:
                if failed.error_class in LIMITS:
                    raise  # a list that the tenant's own limit has cut must not look like a short one
                break
            except (msgspec.DecodeError, RecursionError):
                break
            entries = page.get(KINDS[method])
            for entry in entries if isinstance(entries, list) else ():
                own = entry.get(_MEMBER[method]) if isinstance(entry, dict) else None
                if isinstance(own, str) and own and len(found) < MAX_ENTRIES:
                    found.setdefault(own, entry)
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or cursor in seen or len(found) >= MAX_ENTRIES:
                break
            seen.add(cursor)
        return found


def _long(source: Source) -> str:
    """What makes a URI of an upstream unambiguous, put before it."""
    return f"{SCHEME}{source.name}/"


def _matches(template: str, uri: str) -> bool:
    """Whether a URI can come from an RFC 6570 template: every expression may stand for any text without a break.

    Linear: literals are searched for one after another, no expression of an upstream is run.
    """
    literals = _VARIABLE.split(template[:2_000])
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
