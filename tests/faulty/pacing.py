"""Bytes sent at a rate, for ``--drip``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from tests.faulty.faults import size
from tests.faulty.recording import Plan

TICKS_PER_SECOND = 20


async def paced(chunks: Iterable[bytes], plan: Plan) -> AsyncIterator[bytes]:
    """The chunks as they are, or in small pieces at the rate that the plan's drip says."""
    drip = plan.first("drip")
    if drip is None:
        for chunk in chunks:
            yield chunk
        return
    rate = max(1, size(drip.kind))
    step = max(1, rate // TICKS_PER_SECOND)
    for chunk in chunks:
        for start in range(0, len(chunk), step):
            piece = chunk[start : start + step]
            yield piece
            await asyncio.sleep(len(piece) / rate)
