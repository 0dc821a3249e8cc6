"""Somebody beside a call, for the tests: remembers what it hears, answers what it is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.errors import GatewayError

ADA = {"action": "accept", "content": {"name": "Ada"}}


@dataclass
class Listener:
    """One :class:`~gateway.upstreams.base.Beside`.

    Attributes:
        answer: the result of every question, or what it raises; None: the question stays open for ever.
        heard, questions: method and parameters, in the order of arrival.
        withdrawn: questions that were cancelled.
    """

    capabilities: Mapping[str, Any] = field(default_factory=dict)
    log_level: str | None = None
    wants_progress: bool = False
    answer: Mapping[str, Any] | GatewayError | None = None
    heard: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    questions: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    withdrawn: int = 0

    async def notified(self, method: str, params: bytes) -> None:
        self.heard.append((method, json.loads(params)))

    async def asked(self, method: str, params: bytes) -> bytes:
        self.questions.append((method, json.loads(params)))
        if isinstance(self.answer, GatewayError):
            raise self.answer
        if self.answer is not None:
            return json.dumps(self.answer).encode()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.withdrawn += 1
            raise
        raise AssertionError

    def told(self, method: str) -> list[dict[str, Any]]:
        return [params for name, params in self.heard if name == method]
