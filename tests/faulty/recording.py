"""What has happened so far: counters, sessions, the request log; and from the counters, what goes wrong next."""

from __future__ import annotations

import json
import os
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.faulty.faults import Fault
from tests.faulty.rpc import Incoming
from tests.faulty.switches import FAULTS, Switches

Headers = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Session:
    """One legacy session, or the whole life of a stdio process. Changed by the wire and by the tools it calls."""

    id: str | None
    version: str | None = None
    opened_with: Headers = ()
    calls: int = 0
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What will go wrong with one request: switch → the faults that fire. Decided once, when it arrives."""

    faults: Mapping[str, tuple[Fault, ...]]
    switches: Switches

    def all(self, switch: str) -> tuple[Fault, ...]:
        return self.faults.get(switch, ())

    def first(self, switch: str, *kinds: str) -> Fault | None:
        """The first fault of a switch (of one of these kinds) that fires."""
        return next((fault for fault in self.all(switch) if not kinds or fault.kind in kinds), None)


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One request, notification or response that arrived.

    Attributes:
        point: see :mod:`tests.faulty.switches`; ``other`` for what has no point of its own.
        tool: the tool called, or None.
        message: what the body says; empty for GET and DELETE.
    """

    point: str
    tool: str | None
    message: Incoming
    headers: Headers
    session: Session | None
    modern: bool
    plan: Plan

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


@dataclass(slots=True)
class Record:
    """All that is counted. Only this program's single thread changes it."""

    log: str | None = None
    children: tuple[int, ...] = ()
    requests: Counter[str] = field(default_factory=Counter)
    handshakes: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    lists: int = 0
    in_flight: int = 0
    in_flight_peak: int = 0
    cancelled: list[str] = field(default_factory=list)
    replies: deque[Any] = field(default_factory=lambda: deque(maxlen=1000))
    stored: dict[str, Any] = field(default_factory=dict)
    puts: list[tuple[str, Any]] = field(default_factory=list)
    subscribed: set[str] = field(default_factory=set)
    connections: int = 0
    connections_opened: int = 0
    sessions: dict[str, Session] = field(default_factory=dict)
    _fired: Counter[tuple[str, int]] = field(default_factory=Counter)

    def plan(self, switches: Switches, points: frozenset[str], tool: str | None) -> Plan:
        """Count one request for every fault that concerns it, and say which of them fire."""
        firing: dict[str, tuple[Fault, ...]] = {}
        for switch in FAULTS:
            for index, fault in enumerate(getattr(switches, switch)):
                if fault.concerns(points, tool):
                    self._fired[switch, index] += 1
                    if fault.fires(self._fired[switch, index]):
                        firing[switch] = (*firing.get(switch, ()), fault)
        return Plan(firing, switches)

    def forget_counts(self, switch: str) -> None:
        """A switch was set anew: its limits count from the beginning."""
        for key in [key for key in self._fired if key[0] == switch]:
            del self._fired[key]

    def arrived(self, request: Request) -> None:
        """Count the request and write its line, before anything else happens to it."""
        self.requests[request.point] += 1
        if self.log is None:
            return
        message = request.message
        line = {
            "time": time.time(),
            "pid": os.getpid(),
            "point": request.point,
            "method": message.method,
            "id": None if message.id is None else json.loads(message.id),
            "tool": request.tool,
            "arguments": message.params.get("arguments"),
            "meta": dict(message.meta),
            "headers": dict(request.headers),
            "session": request.session.id if request.session else None,
        }
        with open(self.log, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def call_begins(self) -> None:
        self.in_flight += 1
        self.in_flight_peak = max(self.in_flight_peak, self.in_flight)

    def state(self) -> dict[str, Any]:
        """The answer of ``GET /state``."""
        return {
            "pid": os.getpid(),
            "children": list(self.children),
            "connections": self.connections,
            "connections_opened": self.connections_opened,
            "sessions": list(self.sessions),
            "handshakes": dict(self.handshakes),
            "requests": dict(self.requests),
            "lists": self.lists,
            "calls": self.calls.total(),
            "calls_by_tool": dict(self.calls),
            "in_flight": self.in_flight,
            "in_flight_peak": self.in_flight_peak,
            "cancelled": self.cancelled,
            "replies": list(self.replies),
            "stored": self.stored,
            "puts": self.puts,
            "subscribed": sorted(self.subscribed),
        }
