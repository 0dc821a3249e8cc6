"""The scope that owns the host calls of one execution.

Engines start a host function when the script calls it and forget about it: they neither cancel it when the script ends
nor wait for it. So each call runs as a task of the execution's own :class:`CallScope`; when the execution ends, in
whatever way, the scope lets no further call start, cancels what still runs and waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.errors import ErrorClass, GatewayError
from gateway.kernels.base import MAX_ARGUMENT_BYTES, MAX_DEPTH, Functions, HostFunction
from gateway.kernels.encode import EncodingError, check_plain, to_plain

logger = logging.getLogger(__name__)

GuestFunction = Callable[..., Awaitable[Any]]
"""What the engine calls: positional and keyword arguments of the script → a JSON value."""

SMALL_BYTES = 16 * 1024
"""Up to this size a value is converted on the event loop; above it in a thread, so that the loop stays responsive."""

MAX_MESSAGE_CHARS = 2_000
_CANCEL_GRACE_S = 1.0
_REMEMBERED_FAILURES = 100


class CallScope:
    """The host calls of one execution. Use it as an async context manager around the run.

    Attributes:
        unfinished: after the end, the names of the calls that were still running, in order of their start.
    """

    def __init__(self, functions: Functions, execution_id: str) -> None:
        self._functions = functions
        self._execution_id = execution_id
        self._open = True
        self._running: dict[asyncio.Task[Any], str] = {}
        self._failures: dict[str, GatewayError] = {}
        self.unfinished: tuple[str, ...] = ()

    async def __aenter__(self) -> CallScope:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @property
    def running(self) -> tuple[str, ...]:
        """Names of the calls in flight, in order of their start."""
        return tuple(self._running.values())

    def lookup(self, name: str) -> GuestFunction | None:
        """The host function of that name, made callable for the script; None when there is none."""
        function = self._functions.resolve(name)
        if function is None:
            return None

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._call(name, function, args, kwargs)

        return call

    def failure(self, text: str) -> GatewayError | None:
        """The failure that a call of this execution put before the script with exactly this text.

        A script can raise the same text by itself; that only changes the class of its own failed run.
        """
        return self._failures.get(text)

    async def close(self) -> None:
        """Let no call start any more, cancel those in flight and wait for them. Idempotent."""
        if not self._open:
            return
        self._open = False
        self.unfinished = self.running
        if not self._running:
            return
        for task in self._running:
            task.cancel()
        _, stuck = await asyncio.wait(list(self._running), timeout=_CANCEL_GRACE_S)
        if stuck:
            logger.error("execution %s: %d calls ignore their cancellation", self._execution_id, len(stuck))

    async def _call(self, name: str, function: HostFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one call as a task of this scope, and say its failure in words that the script can catch."""
        if not self._open:
            raise RuntimeError(f"{ErrorClass.CANCELLED}: the script has ended")
        task = asyncio.create_task(self._convert_and_call(name, function, args, kwargs))
        self._running[task] = name
        task.add_done_callback(self._forget)
        try:
            return await task
        except GatewayError as failure:
            raise self._told(failure) from None
        except asyncio.CancelledError:
            if not (self._open and task.cancelled()):
                raise
            raise self._told(GatewayError(ErrorClass.CANCELLED, f"the call of {name} was cancelled")) from None
        except Exception:
            logger.exception("execution %s: the host function %s failed", self._execution_id, name)
            fault = GatewayError(ErrorClass.TOOL_ERROR, f"the call of {name} failed inside the gateway")
            raise self._told(fault) from None

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        if not task.cancelled():
            task.exception()  # seen: nobody may be waiting any more

    async def _convert_and_call(
        self, name: str, function: HostFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            plain_args, plain_kwargs = await convert(_to_plain_arguments, [list(args), kwargs], MAX_ARGUMENT_BYTES)
        except EncodingError as error:
            raise GatewayError(
                ErrorClass.INVALID_ARGUMENTS, f"arguments of {name}: {error}", hint=error.hint
            ) from error
        result = await function(tuple(plain_args), plain_kwargs)
        try:
            check_plain(result)
        except EncodingError as error:
            raise GatewayError(ErrorClass.OUTPUT_LIMIT, f"result of {name}: {error}") from error
        return result

    def _told(self, failure: GatewayError) -> RuntimeError:
        """The exception for the script: ``ERROR_CLASS: message``, then the hint on a line of its own.

        A plain RuntimeError, because engines keep the names of built-in classes only. The failure is remembered by its
        text, should the script not catch it.
        """
        text = f"{failure.error_class}: {failure.message[:MAX_MESSAGE_CHARS]}"
        if failure.hint:
            text += f"\n{failure.hint[:MAX_MESSAGE_CHARS]}"
        while len(self._failures) >= _REMEMBERED_FAILURES:
            self._failures.pop(next(iter(self._failures)))
        # without its traceback, whose frames hold the result that failed: tens of MB that only a full collection frees
        self._failures[text] = failure.with_traceback(None)
        failure.__cause__ = failure.__context__ = None
        return RuntimeError(text)


async def convert(conversion: Callable[[Any, int], Any], value: Any, max_bytes: int) -> Any:
    """``conversion(value, max_bytes)``: at once when the value is small, else in a thread.

    Raises:
        EncodingError
    """
    try:
        return conversion(value, min(SMALL_BYTES, max_bytes))
    except EncodingError as error:
        if not error.too_large:
            raise
    return await asyncio.to_thread(conversion, value, max_bytes)


def _to_plain_arguments(arguments: Any, max_bytes: int) -> Any:
    return to_plain(arguments, max_bytes, MAX_DEPTH + 2)
