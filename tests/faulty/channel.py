"""Where messages go: the channel of one request, and the streams on which the server speaks without being asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tests.faulty.rpc import Message


class Channel(Protocol):
    """Where the answer to one request goes. Each wire has its own."""

    async def send(self, message: Message) -> None: ...

    async def send_raw(self, data: bytes) -> None:
        """Bytes as they are, in place of an answer."""
        ...

    async def close(self) -> None:
        """Break the connection, or end the process."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """A way to reach a client without being asked.

    Attributes:
        kind: ``process`` (legacy stdio), ``get`` (legacy HTTP), ``call`` (while one runs), ``listen`` (modern), or
            ``quiet`` (a listener who asked for nothing).
        subscription: JSON text of the id of the ``subscriptions/listen`` request.
        uris: the resources whose updates it wants to hear of.
    """

    kind: str
    channel: Channel
    legacy: bool
    subscription: str | None = None
    uris: frozenset[str] = frozenset()
