"""What clients of the direct endpoint said they want to hear of: updates of resources, and log messages.

A client of 2026-07-28 says so with each request and names resources when it opens a stream. One of the older era says
it once, by requests of its session; the stream on which it hears of updates is another connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.broker import Broker, Ticket
from gateway.catalog.lru import Lru
from gateway.facade.base import LOG_LEVELS, Caller, Refused
from gateway.facade.features import Features, Source
from gateway.upstreams.base import RpcFailed, UpstreamFailed, UpstreamTimedOut

MAX_SUBSCRIPTIONS = 1_000
MAX_SESSIONS = 10_000

Uris = dict[tuple[str, str], str]
"""(upstream, its own URI) → the URI that the client used."""


@dataclass(slots=True)
class Session:
    """What one session of the older era said.

    Attributes:
        uris: the resources it subscribed to.
        log_level: the least one that it wants; None: it did not say.
    """

    uris: Uris = field(default_factory=dict)
    log_level: str | None = None


class Hearing:
    """Keeps what sessions want, and has upstreams tell it.

    Args:
        broker: the way to the upstreams.
        features_of: what a caller may use, asked for on a ticket.

    Mutable state: ``_sessions``, by (tenant, session id), the ones used last; ``_levels``, the lowest log level that
    anybody has set for an upstream.
    """

    def __init__(self, broker: Broker, features_of: Callable[[Caller, Ticket], Features]) -> None:
        self._broker = broker
        self._features_of = features_of
        self._sessions: Lru[tuple[str, str], Session] = Lru(MAX_SESSIONS)
        self._levels: dict[str, str] = {}

    def session(self, caller: Caller) -> Session:
        """The caller's.

        Raises:
            Refused: it has none.
        """
        if not caller.session:
            raise Refused("invalid_params", "this needs a session: send the Mcp-Session-Id that initialize gave")
        return self._sessions.get((caller.tenant.name, caller.session), Session)

    def log_level(self, caller: Caller) -> str | None:
        """The least level of log messages that the caller wants; None: none."""
        level = caller.client.log_level
        return level if level is None or not caller.session else self.session(caller).log_level or level

    async def set_log_level(self, caller: Caller, ticket: Ticket, level: str, sources: Sequence[Source]) -> None:
        """Each session has its own level. Upstreams are shared: each gets the lowest that anybody has set.

        Raises:
            Refused: there is no such level. GatewayError: an upstream failed.
        """
        if level not in LOG_LEVELS:
            raise Refused("invalid_params", f"Invalid params: the level must be one of {', '.join(LOG_LEVELS)}")
        self.session(caller).log_level = level
        for source in sources:
            if "logging" in source.capabilities and source.era == "legacy":
                lowest = min(level, self._levels.get(source.name, level), key=LOG_LEVELS.index)
                self._levels[source.name] = lowest
                await self._broker.ask(ticket, source.name, "logging/setLevel", {"level": lowest})

    async def subscribe(self, caller: Caller, ticket: Ticket, uri: str) -> None:
        """Have the caller's session hear of a resource.

        Raises:
            Refused: nobody serves it, or there are too many. GatewayError: its upstream refused or failed.
        """
        uris = self.session(caller).uris
        if len(uris) >= MAX_SUBSCRIPTIONS:
            raise Refused("invalid_params", f"a session can subscribe to {MAX_SUBSCRIPTIONS} resources")
        await self._follow(self._features_of(caller, ticket), ticket, uri, uris)

    def unsubscribe(self, caller: Caller, uri: str) -> None:
        """Other sessions may want the same resource, so the upstream goes on telling us of it."""
        uris = self.session(caller).uris
        for key in [key for key, known in uris.items() if known == uri]:
            del uris[key]

    async def follow_all(self, caller: Caller, ticket: Ticket, uris: Sequence[str]) -> Uris:
        """Those of the resources that can be followed.

        Raises:
            GatewayError: a limit.
        """
        features = self._features_of(caller, ticket)
        followed: Uris = {}
        for uri in uris:
            try:
                await self._follow(features, ticket, uri, followed)
            except (Refused, RpcFailed, UpstreamFailed, UpstreamTimedOut):
                continue
        return followed

    async def _follow(self, features: Features, ticket: Ticket, uri: str, uris: Uris) -> None:
        owned = await features.resource_owner(uri)
        await self._broker.follow(ticket, owned.source.name, owned.uri)
        uris[owned.source.name, owned.uri] = uri
