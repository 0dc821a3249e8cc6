"""The life of an upstream as one table, and when to try again. Pure; everything that decides it lives here.

::

    starting ──► ready ◄──► degraded      ready, degraded ──► starting   lost once: started again at once
       │           ▲ │          │         ready, degraded ──► down       lost again soon: wait first
       ▼           │ ▼          ▼         any ──► stopped                the gateway ends
      down ────────┘ (starting or down)

``down`` covers the attempts made meanwhile: until one succeeds there is nothing better to show than the last failure,
and calls fail at once with it. Only in ``starting`` (the first start, or the one right after a loss) do calls wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.errors import GatewayError
from gateway.upstreams.base import Era, RpcFailed, Stage, UpstreamFailed, UpstreamTimedOut

State = Literal["starting", "ready", "degraded", "down", "stopped"]

TRANSITIONS: dict[State, frozenset[State]] = {
    "starting": frozenset({"ready", "down", "stopped"}),
    "ready": frozenset({"ready", "degraded", "starting", "down", "stopped"}),
    "degraded": frozenset({"ready", "degraded", "starting", "down", "stopped"}),
    "down": frozenset({"ready", "down", "stopped"}),
    "stopped": frozenset(),
}

BACKOFF_FIRST_S = 0.5
BACKOFF_CAP_S = 30.0
STABLE_S = 10.0
"""A connection that lasted this long was sound: its loss counts as the first one again, seconds."""


@dataclass(frozen=True, slots=True)
class UpstreamStatus:
    """What is known about an upstream at one moment.

    Attributes:
        state: see the module.
        since: when it entered the state, Unix seconds.
        stage: where it failed last, while ``down`` or ``degraded``; None otherwise.
        reason: why, in one line that everybody may read; "" when there is nothing to say.
        detail: more of why, for the operator alone (end of stderr, address, excerpt of a body); "" when there is none.
        retry_at: when it is tried again, Unix seconds, while ``down`` and waiting.
        era, version, server, instructions, capabilities: what the server told when it was last reached.
        restarts: connections begun after the first one.
        connect_ms: how long the last successful start took, with its list of tools, milliseconds.
        tools: how many there are in the last good list.
        tools_at: when that list was read, Unix seconds; the list is stale while the state is not ``ready``.
        dropped: entries of that list that were no usable tools.
    """

    state: State
    since: float
    stage: Stage | None = None
    reason: str = ""
    detail: str = ""
    retry_at: float | None = None
    era: Era | None = None
    version: str = ""
    server: str = ""
    instructions: str = ""
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    restarts: int = 0
    connect_ms: float | None = None
    tools: int = 0
    tools_at: float | None = None
    dropped: int = 0

    @property
    def usable(self) -> bool:
        """Whether calls are sent."""
        return self.state in ("ready", "degraded")


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure in the words of a status. ``retry_after_s``: the server asked to be left alone for so long."""

    stage: Stage
    reason: str
    detail: str = ""
    retry_after_s: float = 0.0


def failure_of(error: GatewayError, during: Stage) -> Failure:
    """What to show of an error that happened ``during`` the start or the listing."""
    if isinstance(error, UpstreamFailed):
        # A list that was answered nonsense fails the list, whatever the connector calls it.
        stage = during if error.stage == "call" else error.stage
        return Failure(stage, error.reason, error.detail, error.retry_after_s or 0.0)
    if isinstance(error, UpstreamTimedOut):
        return Failure(during, f"no answer to {error.what} within {error.timeout_s:g} s")
    if isinstance(error, RpcFailed):
        return Failure(during, f"it answered with error {error.code}", error.message[:300])
    return Failure(during, error.message)


def backoff(failures: int, random: Callable[[], float]) -> float:
    """Seconds to wait after the ``failures``-th failure in a row (1, 2, …).

    Doubles from 0.5 s to 30 s; then a random quarter is taken off, so that many upstreams that fell together do not
    come back together.

    Args:
        random: gives a number in [0, 1).
    """
    full: float = min(BACKOFF_CAP_S, BACKOFF_FIRST_S * 2.0 ** min(failures - 1, 16))
    return full * (1.0 - 0.25 * random())


def restart_delay(failures: int, was_ready: bool, random: Callable[[], float]) -> float:
    """Seconds until the next attempt. The first loss of a connection that had been ready costs no wait.

    Args:
        failures: failures in a row, this one included; a stable connection (:data:`STABLE_S`) starts the count anew.
        was_ready: whether the connection that failed had been ready.
    """
    if was_ready and failures == 1:
        return 0.0
    return backoff(failures, random)
