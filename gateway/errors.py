"""The vocabulary of failures: one table, used by every room.

A failure is typed once, where it happens, as a :class:`GatewayError` with one of the classes below. Scripts catch it,
the facade writes it for the model (``ERROR_CLASS: message (line N)``), the edge alone turns it into wire errors.
This module imports nothing of ours and may be imported from anywhere.
"""

from __future__ import annotations

from enum import StrEnum


class ErrorClass(StrEnum):
    """The fixed names that a model, an operator and a metric label may see."""

    # the script itself
    SYNTAX_ERROR = "SYNTAX_ERROR"
    UNSUPPORTED_SYNTAX = "UNSUPPORTED_SYNTAX"
    TYPE_ERROR = "TYPE_ERROR"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    POLICY_VIOLATION = "POLICY_VIOLATION"
    # a tool call
    TOOL_ERROR = "TOOL_ERROR"
    UNKNOWN_TOOL = "UNKNOWN_TOOL"
    INVALID_ARGUMENTS = "INVALID_ARGUMENTS"
    CAPABILITY_DENIED = "CAPABILITY_DENIED"
    UPSTREAM_UNAVAILABLE = "UPSTREAM_UNAVAILABLE"
    UPSTREAM_TIMEOUT = "UPSTREAM_TIMEOUT"
    # limits of one execution
    CPU_LIMIT = "CPU_LIMIT"
    WALL_TIMEOUT = "WALL_TIMEOUT"
    MEMORY_LIMIT = "MEMORY_LIMIT"
    RECURSION_LIMIT = "RECURSION_LIMIT"
    CALL_LIMIT = "CALL_LIMIT"
    OUTPUT_LIMIT = "OUTPUT_LIMIT"
    # limits of the tenant
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    RATE_LIMITED = "RATE_LIMITED"
    # the gateway's own
    KERNEL_CRASHED = "KERNEL_CRASHED"
    KERNEL_UNAVAILABLE = "KERNEL_UNAVAILABLE"
    CANCELLED = "CANCELLED"


class GatewayError(Exception):
    """A failure that may be shown to the caller: its text never holds a secret, a host path or a foreign tenant's name.

    Args:
        error_class: what kind of failure this is.
        message: one sentence that says what happened.
        hint: what to do instead, when it is known.
        retry_after_s: seconds after which the same request may succeed, for limits.
    """

    def __init__(
        self,
        error_class: ErrorClass,
        message: str,
        *,
        hint: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.error_class = error_class
        self.message = message
        self.hint = hint
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.error_class}: {self.message}" + (f" ({self.hint})" if self.hint else "")
