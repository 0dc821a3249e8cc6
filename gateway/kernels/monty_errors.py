"""How each failure of the Python engine is told to the author of the script.

The engine's exceptions become the error classes of :mod:`gateway.errors`. Messages are one line and bounded; they
name the author's own line and never the gateway's. The script can raise any of these exceptions by itself: that only
changes the class of its own failed run, so nothing is ever decided by them.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable
from dataclasses import dataclass

from pydantic_monty import (
    MontyCrashedError,
    MontyError,
    MontyRuntimeError,
    MontySyntaxError,
    MontyTypingError,
)

from gateway.config.model import Manifest
from gateway.errors import ErrorClass, GatewayError
from gateway.kernels.base import ExecError
from gateway.kernels.calls import MAX_MESSAGE_CHARS
from gateway.kernels.encode import EncodingError
from gateway.kernels.hints import hint_for

_LESS_MEMORY = "fetch or keep less at a time, and return a summary"
_LESS_CPU = "filter with the tools' own arguments, and avoid nested loops over large lists"
_LOOKED_AT_CHARS = 8_192
"""More than the longest text that a failed call puts before a script."""
_FINDING = re.compile(r"^\S*?:(\d+):(\d+): (?:error|warning)(?:\[[\w-]+\])? ?", re.MULTILINE)


def explain(error: MontyError, manifest: Manifest, failure: Callable[[str], GatewayError | None]) -> ExecError:
    """What to tell about an exception of the engine.

    Args:
        failure: finds the failed host call by the text that it put before the script.
    """
    if isinstance(error, MontySyntaxError):
        return _at(error, ErrorClass.SYNTAX_ERROR, str(error), hint_for(str(error)))
    if isinstance(error, MontyTypingError):
        return _typing(error.display())
    if isinstance(error, MontyCrashedError):
        return cpu_limit(manifest) if error.timed_out else crashed()
    if isinstance(error, MontyRuntimeError):
        return _runtime(error, manifest, failure)
    return ExecError(ErrorClass.RUNTIME_ERROR, one_line(str(error)))


def crashed() -> ExecError:
    return ExecError(
        ErrorClass.KERNEL_CRASHED,
        "the sandbox process ended while the script ran; calls that it had made may have taken effect",
        hint="run it again; if it happens again, do less in one script",
    )


def cpu_limit(manifest: Manifest) -> ExecError:
    return ExecError(ErrorClass.CPU_LIMIT, f"the script used up its {manifest.cpu_ms:,} ms of CPU time", hint=_LESS_CPU)


def wall_timeout(manifest: Manifest, waiting_for: tuple[str, ...]) -> ExecError:
    """The whole execution took too long; ``waiting_for`` names the calls in flight."""
    message = f"the script did not end within its {manifest.wall_ms:,} ms"
    if waiting_for:
        message += f"; calls in flight ({len(waiting_for)}): " + ", ".join(dict.fromkeys(waiting_for[:20]))
    return ExecError(ErrorClass.WALL_TIMEOUT, one_line(message), hint="make fewer calls, or run them together")


def unencodable(error: EncodingError) -> ExecError:
    """The script ended well, but its value cannot leave the sandbox."""
    error_class = ErrorClass.OUTPUT_LIMIT if error.too_large else ErrorClass.RUNTIME_ERROR
    return ExecError(error_class, str(error), hint=error.hint)


def of_gateway_error(error: GatewayError) -> ExecError:
    return ExecError(error.error_class, one_line(error.message), hint=error.hint)


def one_line(text: str) -> str:
    """The text without line breaks and control characters, at most 2,000 characters."""
    text = text[: 2 * MAX_MESSAGE_CHARS]
    text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"


@dataclass(frozen=True, slots=True)
class _Rule:
    """An exception of the guest: its type, a pattern of its text (None: any), and the class it is told as."""

    kind: str
    pattern: str | None
    error_class: ErrorClass

    def matches(self, kind: str, text: str) -> bool:
        return kind == self.kind and (self.pattern is None or re.search(self.pattern, text) is not None)


_RULES = (
    _Rule("TimeoutError", r"^(feed|turn) time limit exceeded", ErrorClass.CPU_LIMIT),
    _Rule("TimeoutError", r"^sleep limit exceeded", ErrorClass.WALL_TIMEOUT),
    _Rule("MemoryError", None, ErrorClass.MEMORY_LIMIT),
    _Rule("RecursionError", None, ErrorClass.RECURSION_LIMIT),
    _Rule("RuntimeError", r"^suspension limit \d+ exceeded", ErrorClass.CALL_LIMIT),
    _Rule("RuntimeError", r"is not supported in this environment", ErrorClass.UNSUPPORTED_SYNTAX),
    _Rule("NotImplementedError", r"does not yet support", ErrorClass.UNSUPPORTED_SYNTAX),
    _Rule("ModuleNotFoundError", None, ErrorClass.UNSUPPORTED_SYNTAX),
    _Rule("ImportError", None, ErrorClass.UNSUPPORTED_SYNTAX),
    _Rule("AttributeError", r"^(module|type object) '[\w.]+' has no attribute", ErrorClass.UNSUPPORTED_SYNTAX),
    _Rule("PermissionError", None, ErrorClass.CAPABILITY_DENIED),
    _Rule("OSError", r"^disk write limit", ErrorClass.QUOTA_EXCEEDED),
)
_UNDEFINED = re.compile(r"^name '(\w+)' is not defined")


def _runtime(error: MontyRuntimeError, manifest: Manifest, failure: Callable[[str], GatewayError | None]) -> ExecError:
    inner = error.exception()
    # cut before anything looks inside: matching 30 MB of a script's own text would hold the event loop for seconds
    kind, text, told = type(inner).__name__, str(inner)[:_LOOKED_AT_CHARS], str(error)[:_LOOKED_AT_CHARS]
    if kind == "RuntimeError" and (failed := failure(text)):
        return _at(error, failed.error_class, failed.message, failed.hint)
    if kind == "NameError" and (name := _UNDEFINED.match(text)) and hasattr(builtins, name[1]):
        message = f"the built-in {name[1]} does not exist in this Python"
        return _at(error, ErrorClass.UNSUPPORTED_SYNTAX, message, hint_for(message))
    for rule in _RULES:
        if rule.matches(kind, text):
            return _limited(error, rule.error_class, told, manifest)
    return _at(error, ErrorClass.RUNTIME_ERROR, told, hint_for(told))


def _limited(error: MontyRuntimeError, error_class: ErrorClass, text: str, manifest: Manifest) -> ExecError:
    """The failures that say more when the manifest is known."""
    match error_class:
        case ErrorClass.CPU_LIMIT:
            return cpu_limit(manifest)
        case ErrorClass.MEMORY_LIMIT:
            message = f"the script or its value needed more than {manifest.memory_limit_bytes:,} bytes of memory"
            return _at(error, error_class, message, _LESS_MEMORY)
        case ErrorClass.WALL_TIMEOUT:
            return _at(error, error_class, f"the script slept longer than its {manifest.wall_ms:,} ms", None)
        case ErrorClass.CALL_LIMIT:
            return _at(error, error_class, "the script made too many calls", "ask for more with fewer calls")
        case ErrorClass.RECURSION_LIMIT:
            return _at(error, error_class, text, "use a loop instead of deep recursion")
        case ErrorClass.CAPABILITY_DENIED:
            return _at(error, error_class, text, _allowed_paths(manifest))
        case ErrorClass.QUOTA_EXCEEDED:
            return _at(error, error_class, text, "write less in one script")
    return _at(error, error_class, text, hint_for(text))


def _allowed_paths(manifest: Manifest) -> str:
    if not manifest.allowed_read_paths and not manifest.allowed_write_paths:
        return "scripts have no files here: pass data between calls in variables"
    readable, writable = ", ".join(manifest.allowed_read_paths), ", ".join(manifest.allowed_write_paths)
    return f"readable: {readable or 'nothing more'}; writable: {writable or 'nothing'}"


def _typing(findings: str) -> ExecError:
    """The type checker's findings, one a line as ``main.py:1:22: error[rule] text``; the first gives the position."""
    first = _FINDING.search(findings)
    message = one_line("; ".join(_FINDING.sub("", line) for line in findings.splitlines() if _FINDING.match(line)))
    return ExecError(
        ErrorClass.TYPE_ERROR,
        message or one_line(findings),
        line=int(first[1]) if first else None,
        column=int(first[2]) if first else None,
        hint=hint_for(findings) or "nothing was run",
    )


def _at(
    error: MontyRuntimeError | MontySyntaxError, error_class: ErrorClass, message: str, hint: str | None
) -> ExecError:
    """The failure with the innermost position in the author's code (text given to ``eval`` has none)."""
    frames = [frame for frame in error.traceback() if frame.filename != "<string>"]
    line, column = (frames[-1].line, frames[-1].column) if frames else (None, None)
    return ExecError(error_class, one_line(message), line=line, column=column, hint=hint)
