"""What a kernel is: the interface that every sandbox engine implements.

A kernel gets a script, a manifest and one async ``call_tool``; nothing more. It knows no MCP, no tenant and no
upstream. It answers with an :class:`ExecResult` also when the script failed: exceptions are for the gateway's own
faults.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from gateway.config.model import Manifest
from gateway.errors import ErrorClass

Enforcement = Literal["native", "bridged", "refused"]
"""How a manifest field is enforced: by the engine, by the host on its behalf, or not at all
(then the config refuses it)."""

HostFunction = Callable[[tuple[Any, ...], Mapping[str, Any]], Awaitable[Any]]
"""``await f(args, kwargs)`` → a JSON value. Raises :class:`gateway.errors.GatewayError`, which the script can catch."""


@dataclass(frozen=True, slots=True)
class Functions:
    """The host functions that a script may call, resolved by name when the script first uses them.

    Attributes:
        resolve: name → function, or None when there is none of that name. Must be cheap: it is asked for every
            free name of the script.
    """

    resolve: Callable[[str], HostFunction | None]


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """One script to run.

    Attributes:
        execution_id: opaque, for logs.
        fairness_key: opaque; executions with the same key share one fair share of the pool.
        code: the source text.
        manifest: effective limits and capabilities.
        deadline: when the whole execution must have ended, in ``loop.time()`` seconds.
        functions: what the script may call.
        stubs: declarations of the functions in the script's language; the script is checked against them before it
            runs. None: no check. Made from cleaned names and schemas only.
        on_cancelled: told what the script had used by then when its run is cancelled: an exception carries no result.
    """

    execution_id: str
    fairness_key: str
    code: str
    manifest: Manifest
    deadline: float
    functions: Functions
    stubs: str | None = None
    on_cancelled: Callable[[ExecUsage], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class ExecError:
    """Why a script failed, in the words of the contract.

    ``line`` and ``column`` count from 1 in the author's own code; None when unknown.
    """

    error_class: ErrorClass
    message: str
    line: int | None = None
    column: int | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class ExecUsage:
    """What a run used: CPU and wall in milliseconds, queue time apart."""

    cpu_ms: float = 0.0
    wall_ms: float = 0.0
    queue_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a script ended.

    Attributes:
        ok: the script reached its end.
        value: compact JSON of its value, UTF-8, at most :data:`MAX_VALUE_BYTES`; ``b"null"`` when it failed.
        logs: what it printed, cut to :data:`MAX_LOG_CHARS`.
        logs_dropped: characters of output that were cut.
        notes: what the author should know although the script ended well, one sentence each.
    """

    ok: bool
    value: bytes = b"null"
    error: ExecError | None = None
    logs: str = ""
    logs_dropped: int = 0
    notes: tuple[str, ...] = ()
    usage: ExecUsage = field(default_factory=ExecUsage)


MAX_CODE_BYTES = 256 * 1024
MAX_VALUE_BYTES = 1024 * 1024
MAX_LOG_CHARS = 64 * 1024
MAX_ARGUMENT_BYTES = 1024 * 1024
MAX_RESULT_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class KernelStats:
    """Workers by state: ``idle``, ``busy``; and executions that wait."""

    idle: int
    busy: int
    waiting: int


class Kernel(Protocol):
    """A pool of sandboxes of one engine. Started once, then shared by all tenants."""

    engine: str
    language: Literal["python", "javascript"]
    isolation: str
    enforcement: Mapping[str, Enforcement]

    async def start(self) -> None:
        """Warm the pool. Raises GatewayError(KERNEL_UNAVAILABLE) with the reason."""
        ...

    async def run(self, request: ExecRequest) -> ExecResult:
        """Run one script in a fresh sandbox. When the caller is cancelled, the script and its calls end with it."""
        ...

    async def stop(self) -> None:
        """End all workers. Idempotent."""
        ...

    def stats(self) -> KernelStats: ...
