"""The Python kernel: scripts run in worker processes of pydantic-monty, an interpreter without an operating system.

One execution is one checkout: a fresh session in a warm worker, with every limit of the manifest as a number (a limit
that is left out is off). The engine enforces CPU time and memory; the wall deadline, the end of host calls and the
caps on what comes out are ours. The README beside this file argues these choices.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any, Literal

from gateway.config.model import Manifest
from gateway.errors import ErrorClass, GatewayError
from gateway.kernels.base import (
    MAX_CODE_BYTES,
    MAX_VALUE_BYTES,
    Enforcement,
    ExecError,
    ExecRequest,
    ExecResult,
    ExecUsage,
    Functions,
    KernelStats,
)
from gateway.kernels.calls import CallScope, GuestFunction, convert
from gateway.kernels.encode import EncodingError, to_json
from gateway.kernels.logs import LogBuffer

try:
    from pydantic_monty import AsyncMonty, AsyncMontySession, MontyError, MountDir

    from gateway.kernels import monty_errors, monty_os
except ImportError as error:
    raise ImportError(f"the monty engine needs pydantic-monty >=1.4,<1.5: {error}") from error

logger = logging.getLogger(__name__)

WARM_WORKERS = 2
RUNS_PER_WORKER = 1_000
"""A worker is replaced after so many executions, which bounds whatever it may leak."""

KILL_GRACE_S = 0.4
"""How long a worker may overrun its CPU limit before it is killed: one long operation hides from the engine's clock."""

MAX_SLEEP_S = 1.0
RECURSION_DEPTH = 1_000
_CLOSE_S = 5.0
_ABORT_GUARD_S = 0.05
"""A process that ends right after closing a pool may abort while Python finalises (18 of 40 runs; with this pause 0 of
30): threads of the engine's runtime are still ending. So there is a pause after each close, and one at exit."""

_IDENTIFIER = re.compile(r"[^\W\d]\w*")

atexit.register(time.sleep, _ABORT_GUARD_S)


class MontyKernel:
    """A pool of workers. One execution holds one worker also while it waits for its calls.

    Executions that find no free worker wait in order of arrival: how many of them one tenant may have at all is
    limited by whoever calls, so a fair share needs no second queue here.

    Args:
        workers: how many executions may run at once.
        queue_timeout_s: seconds that an execution waits for a free worker.
    """

    engine: str = "monty"
    language: Literal["python", "javascript"] = "python"
    isolation: str = "interpreter without an operating system, in a process of its own with an empty environment"
    enforcement: Mapping[str, Enforcement] = {
        "allowedHosts": "refused",
        "allowedReadPaths": "native",
        "allowedWritePaths": "native",
        "env": "native",
        "cpuMs": "native",
        "memoryLimitBytes": "native",
        "wallMs": "bridged",
        "maxToolCalls": "bridged",
        "maxParallelCalls": "bridged",
        "maxOutputTokens": "bridged",
    }

    def __init__(self, workers: int, queue_timeout_s: float) -> None:
        self._workers = workers
        self._queue_timeout_s = queue_timeout_s
        self._slots = asyncio.Semaphore(workers)
        # Changed by start, stop and run only, all on the event loop.
        self._pool: AsyncMonty | None = None
        self._feeds: set[asyncio.Task[Any]] = set()
        self._waiting = 0
        self._busy = 0

    @staticmethod
    def check_manifest(manifest: Manifest) -> list[str]:
        """What this engine could not enforce or provide; for the config check."""
        return monty_os.check_manifest(manifest)

    @staticmethod
    def unavailable_reason() -> str | None:
        """Why the engine cannot work on this host, or None; for ``gateway doctor``."""
        return None if _binary() else "the worker program of pydantic-monty-runtime is not installed"

    async def start(self) -> None:
        """Start the warm workers and run one script. Does nothing when it is running already.

        Raises:
            GatewayError: KERNEL_UNAVAILABLE, with the reason.
        """
        if self._pool is not None:
            return
        binary = _binary()
        if binary is None:
            raise GatewayError(ErrorClass.KERNEL_UNAVAILABLE, "the monty worker program is not installed")
        try:
            pool = AsyncMonty(
                binary_path=binary,
                min_processes=min(WARM_WORKERS, self._workers),
                max_processes=self._workers,
                checkout_timeout=self._queue_timeout_s,
                max_checkouts_per_worker=RUNS_PER_WORKER,
                feed_duration_limit_grace=KILL_GRACE_S,
                turn_duration_limit_grace=KILL_GRACE_S,
            )
            await pool.__aenter__()
        except (RuntimeError, OSError, TypeError, ValueError) as error:
            logger.exception("monty workers do not start")
            raise GatewayError(ErrorClass.KERNEL_UNAVAILABLE, "the monty workers do not start") from error
        self._pool = pool
        probe = await self.run(_probe())
        if probe.value != b"2":
            await self.stop()
            reason = probe.error.message if probe.error else "the test script gave a wrong result"
            raise GatewayError(ErrorClass.KERNEL_UNAVAILABLE, f"the monty workers do not work: {reason}")

    async def run(self, request: ExecRequest) -> ExecResult:
        """Run one script in a fresh session. Cancelling this ends the script and its calls within a second."""
        if refusal := _refuse(request.code):
            return ExecResult(ok=False, error=refusal)
        loop = asyncio.get_running_loop()
        arrived = begun = loop.time()
        logs = LogBuffer()
        ended = _Ended()

        def usage() -> ExecUsage:
            return ExecUsage(ended.cpu_ms, (loop.time() - begun) * 1000, (begun - arrived) * 1000)

        try:
            with monty_os.mounts_of(request.manifest) as mounts:
                async with self._session(request) as session:
                    begun = loop.time()
                    ended = await self._run_in(session, request, logs, mounts)
            value = b"null" if ended.error else await convert(to_json, ended.value, MAX_VALUE_BYTES)
        except asyncio.CancelledError:
            if ended.cpu_ms:
                request.on_cancelled(usage())
            raise
        except GatewayError as failure:
            value, ended = b"null", _Ended(error=monty_errors.of_gateway_error(failure))
        except EncodingError as failure:
            value, ended = b"null", _Ended(monty_errors.unencodable(failure), cpu_ms=ended.cpu_ms)
        return ExecResult(
            ok=ended.error is None,
            value=value,
            error=ended.error,
            logs=logs.text(),
            logs_dropped=logs.dropped,
            notes=ended.notes,
            usage=usage(),
        )

    async def stop(self) -> None:
        """End the scripts that run (their runs answer CANCELLED) and all workers. Idempotent."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        if feeds := set(self._feeds):
            for feed in feeds:
                feed.cancel()
            await asyncio.wait(feeds, timeout=_CLOSE_S)
        try:
            async with asyncio.timeout(_CLOSE_S):
                await pool.__aexit__(None, None, None)
        except TimeoutError:
            logger.warning("monty workers did not end within %g s", _CLOSE_S)
        await asyncio.sleep(_ABORT_GUARD_S)

    def stats(self) -> KernelStats:
        """``idle`` counts free places; the pool starts the process of a place when it is first needed."""
        return KernelStats(idle=self._workers - self._busy, busy=self._busy, waiting=self._waiting)

    @asynccontextmanager
    async def _session(self, request: ExecRequest) -> AsyncIterator[AsyncMontySession]:
        """A fresh session in a worker of its own.

        Raises:
            GatewayError: KERNEL_UNAVAILABLE, the kernel is not running or no worker became free in time.
        """
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as held:
            self._waiting += 1
            try:
                async with asyncio.timeout_at(min(request.deadline, loop.time() + self._queue_timeout_s)):
                    await held.enter_async_context(self._slots)
                    session = await self._checkout(held, request)
            except TimeoutError:
                raise GatewayError(
                    ErrorClass.KERNEL_UNAVAILABLE, "all sandboxes are busy", hint="try again in a few seconds"
                ) from None
            finally:
                self._waiting -= 1
            self._busy += 1
            try:
                yield session
            finally:
                self._busy -= 1

    async def _checkout(self, held: AsyncExitStack, request: ExecRequest) -> AsyncMontySession:
        """Enter a session. A worker that died while it was idle shows only now: nothing ran in it, so take another.

        Raises:
            GatewayError: KERNEL_UNAVAILABLE, no worker can be started.
            TimeoutError: no worker became free in time.
        """
        failure: Exception | None = None
        for _ in range(self._workers + 1):
            if self._pool is None:
                raise GatewayError(ErrorClass.KERNEL_UNAVAILABLE, "the python kernel is not running")
            try:
                return await held.enter_async_context(self._pool.checkout(**_options(request.manifest, request.stubs)))
            except (MontyError, RuntimeError) as error:
                failure = error
        logger.error("no monty worker can be started", exc_info=failure)
        raise GatewayError(
            ErrorClass.KERNEL_UNAVAILABLE, "no sandbox can be started", hint="try again in a few seconds"
        ) from failure

    async def _run_in(
        self, session: AsyncMontySession, request: ExecRequest, logs: LogBuffer, mounts: list[MountDir]
    ) -> _Ended:
        """Feed the script to the session and wait for its end, the deadline or our own cancellation."""
        loop = asyncio.get_running_loop()
        begun, clock = loop.time(), _CpuClock(session.worker_pid)
        error: ExecError | None = None
        value: Any = None
        async with CallScope(request.functions, request.execution_id) as scope:
            feed = asyncio.create_task(_feed(session, request, scope, logs, mounts))
            self._feeds.add(feed)
            try:
                await asyncio.wait({feed}, timeout=max(0.0, request.deadline - loop.time()))
                cpu_ms = clock.read_ms(at_most=request.manifest.cpu_ms)
                if not feed.done():
                    error = monty_errors.wall_timeout(request.manifest, scope.running)
            except asyncio.CancelledError:
                # now, while the worker still exists
                cpu_ms = clock.read_ms(at_most=request.manifest.cpu_ms)
                request.on_cancelled(ExecUsage(cpu_ms, (loop.time() - begun) * 1000))
                raise
            finally:
                self._feeds.discard(feed)
                if not feed.done():
                    feed.cancel()
                    await asyncio.wait({feed}, timeout=_CLOSE_S)
        if error is None:
            value, error = _outcome(feed, request, scope)
        return _Ended(error, value, cpu_ms, _unawaited(scope) if error is None else ())


@dataclass(frozen=True, slots=True)
class _Ended:
    """How the script ended, its value still as the engine gave it."""

    error: ExecError | None = None
    value: Any = None
    cpu_ms: float = 0.0
    notes: tuple[str, ...] = ()


async def _feed(
    session: AsyncMontySession, request: ExecRequest, scope: CallScope, logs: LogBuffer, mounts: list[MountDir]
) -> Any:
    return await session.feed_run(
        request.code,
        inputs={"env": dict(request.manifest.env)},
        external_lookup=_lookup(request.code, scope),
        print_callback=logs.write,
        mount=mounts,
        cwd="/",
        os=monty_os.Environment(request.manifest.env),
    )


def _lookup(code: str, scope: CallScope) -> dict[str, GuestFunction]:
    """The host functions among the words of the script.

    The engine wants a real dict and reads it past any override, so it cannot be asked lazily; driving the engine step
    by step could, at twice the cost of a call. A name that the script only computes is reached by ``call_tool``.
    """
    words = dict.fromkeys(_IDENTIFIER.findall(code))
    return {word: function for word in words if (function := scope.lookup(word))}


def _options(manifest: Manifest, stubs: str | None) -> dict[str, Any]:
    """The arguments of a checkout. All limits are numbers: one that is None or missing would be off."""
    cpu_s = manifest.cpu_ms / 1000
    return {
        "limits": {
            "max_feed_duration_secs": cpu_s,
            "max_turn_duration_secs": cpu_s,
            "max_memory": manifest.memory_limit_bytes,
            "max_recursion_depth": RECURSION_DEPTH,
            # A call is two or three of these. Above the cap on calls, which should speak first; not much, for this is
            # what ends a script that catches the refusal and goes on.
            "max_suspensions": 5_000 + 4 * manifest.max_tool_calls,
            "max_total_sleep_secs": manifest.wall_ms / 1000,
        },
        "os_policy": {"sleep": "system", "sleep_system_max": MAX_SLEEP_S},
        "type_check": stubs is not None,
        "type_check_stubs": stubs,
        "type_check_format": "concise",
    }


def _outcome(feed: asyncio.Task[Any], request: ExecRequest, scope: CallScope) -> tuple[Any, ExecError | None]:
    """The value or the error of a feed that has ended by itself or was cancelled by ``stop``."""
    if feed.cancelled():
        return None, ExecError(ErrorClass.CANCELLED, "the gateway is shutting down")
    match feed.exception():
        case None:
            return feed.result(), None
        case MontyError() as failure:
            return None, monty_errors.explain(failure, request.manifest, scope.failure)
        case fault:
            logger.error("execution %s: the monty engine failed", request.execution_id, exc_info=fault)
            return None, monty_errors.crashed()


def _unawaited(scope: CallScope) -> tuple[str, ...]:
    """What to say about calls that still ran when the script ended well."""
    names = ", ".join(dict.fromkeys(scope.unfinished[:20]))
    return (f"calls that were not awaited have been cancelled: {names}",) if names else ()


def _refuse(code: str) -> ExecError | None:
    """Texts that the engine must not see: too long, or not text at all."""
    try:
        size = len(code.encode("utf-8"))
    except UnicodeEncodeError:
        return ExecError(ErrorClass.SYNTAX_ERROR, "the script holds half a surrogate pair, which is no character")
    if size > MAX_CODE_BYTES:
        return ExecError(
            ErrorClass.POLICY_VIOLATION,
            f"the script is {size:,} bytes long; at most {MAX_CODE_BYTES:,} are accepted",
            hint="fetch data by calls instead of writing it into the script",
        )
    return None


class _CpuClock:
    """CPU time of a worker since now: its process clock on Linux, else the time that has passed."""

    def __init__(self, pid: int | None) -> None:
        self._clock = None if pid is None else (~pid << 3) | 2  # how Linux numbers the clock of another process
        self._begun = time.monotonic()
        self._start_ns = self._read_ns()

    def read_ms(self, at_most: float) -> float:
        """Milliseconds; ``at_most`` bounds the guess that is made when the worker is gone."""
        now = self._read_ns()
        if now is None or self._start_ns is None:
            return min((time.monotonic() - self._begun) * 1000, at_most)
        return (now - self._start_ns) / 1e6

    def _read_ns(self) -> int | None:
        if self._clock is None:
            return None
        try:
            return time.clock_gettime_ns(self._clock)
        except (OSError, AttributeError):
            return None


def _binary() -> Path | None:
    """The worker program of the installed package; never one that an environment variable or PATH names."""
    try:
        installed = files("pydantic-monty-runtime") or ()
    except PackageNotFoundError:
        return None
    for file in installed:
        if file.name in ("monty", "monty.exe"):
            path = Path(str(file.locate()))
            return path.resolve() if path.is_file() else None
    return None


def _probe() -> ExecRequest:
    return ExecRequest(
        execution_id="start",
        fairness_key="",
        code="1 + 1",
        manifest=Manifest(),
        deadline=asyncio.get_running_loop().time() + 10,
        functions=Functions(lambda _: None),
    )
