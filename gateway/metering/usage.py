"""What is kept of a request: one :class:`UsageRow`, and a :class:`CallRow` for each tool call it made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gateway.metering.parts import Tokens

Endpoint = Literal["code", "direct"]


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One request, with final figures. Written once: the request id is its key, so that a repeated flush adds nothing.

    Attributes:
        request_id: unique, ours.
        ts: when the request began, unix seconds.
        tenant: name.
        key_id: public id of the API key; never its secret.
        endpoint: ``code`` for ``/mcp``, ``direct`` for ``/mcp/direct``.
        method: MCP method.
        tool: ``docs_search``, ``execute_code``, the tool of direct mode, or "".
        outcome: ``ok``, or what failed, as in the metrics.
        error_class: one of ``gateway.errors.ErrorClass``, or "".
        tokens: both arms of the comparison.
        tool_calls: calls that were asked for, those that failed among them.
        calls_failed: how many of them failed.
        cpu_ms: CPU time of the script.
        wall_ms: from the request's first byte to its answer.
        kernel: name of the kernel, or "".
        protocol: the MCP version that the client speaks.
    """

    request_id: str
    ts: float
    tenant: str
    key_id: str
    endpoint: Endpoint
    method: str
    tool: str = ""
    outcome: str = "ok"
    error_class: str = ""
    tokens: Tokens = field(default_factory=Tokens)
    tool_calls: int = 0
    calls_failed: int = 0
    cpu_ms: float = 0.0
    wall_ms: float = 0.0
    kernel: str = ""
    protocol: str = ""

    @property
    def hidden(self) -> int:
        """Tokens of inner arguments and results, which stayed in the sandbox."""
        return self.tokens.hidden

    @property
    def saved(self) -> int:
        """direct − code; negative when code mode cost more."""
        return self.tokens.saved


@dataclass(frozen=True, slots=True)
class CallRow:
    """One tool call of a request.

    Attributes:
        request_id: the request that made it.
        seq: its number within the request.
        upstream: "" when the tool is unknown.
        tool: as the script can write it.
        outcome: ``ok`` or what failed.
        ms: wall time.
        tokens_in: name and arguments as a model would have written them.
        tokens_out: the text that a model would have read.
        estimated: one of the two was not really counted.
    """

    request_id: str
    seq: int
    upstream: str
    tool: str
    outcome: str
    ms: float
    tokens_in: int = 0
    tokens_out: int = 0
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class UsageSummary:
    """Sums over the requests of one group.

    Attributes:
        tenant: None when the group spans tenants.
        day: ``YYYY-MM-DD`` in UTC, None when the group spans days.
        errors: requests whose outcome is not ``ok``.
        tokens_code: really sent.
        tokens_direct: what direct MCP would have sent.
        estimated: requests with a figure that was not really counted.
    """

    tenant: str | None
    day: str | None
    requests: int
    errors: int
    tool_calls: int
    calls_failed: int
    tokens_code: int
    tokens_direct: int
    hidden: int
    estimated: int

    @property
    def saved(self) -> int:
        """direct − code; negative when code mode cost more."""
        return self.tokens_direct - self.tokens_code

    @property
    def estimated_share(self) -> float:
        """0 to 1: the part of the requests whose figures are not wholly counted."""
        return self.estimated / self.requests if self.requests else 0.0
