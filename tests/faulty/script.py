"""``--script FILE``: exact bytes at a point of the protocol, for anything the switches do not cover.

A list of steps ``{"on": POINT, "sleep": S?, "send": TEXT?, "close": true?, "exit": N?}``. Whenever a request arrives
at a point that has steps, all its steps are done in order, in place of an answer. In TEXT, ``$ID`` stands for the id of
the request; ``base64:…`` is sent decoded.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from typing import Any

from tests.faulty.channel import Channel
from tests.faulty.switches import BadSwitch


class Script:
    """The steps; none without a file.

    Raises:
        BadSwitch: the file holds no list of steps.
        OSError: it cannot be read.
    """

    def __init__(self, path: str | None) -> None:
        steps: Any = []
        if path is not None:
            with open(path, encoding="utf-8") as file:
                try:
                    steps = json.load(file)
                except ValueError as error:
                    raise BadSwitch(f"--script {path}: {error}") from None
        if not isinstance(steps, list) or not all(isinstance(step, dict) and "on" in step for step in steps):
            raise BadSwitch(f"--script {path}: expected a list of steps")
        self._steps: list[dict[str, Any]] = steps

    def covers(self, point: str) -> bool:
        return any(step["on"] == point for step in self._steps)

    async def follow(self, point: str, identity: str, channel: Channel) -> None:
        """Do the steps of a point."""
        for step in self._steps:
            if step["on"] != point:
                continue
            await asyncio.sleep(step.get("sleep", 0))
            if "send" in step:
                await channel.send_raw(_bytes(step["send"], identity))
            if step.get("close"):
                await channel.close()
            if "exit" in step:
                os._exit(step["exit"])


def _bytes(text: str, identity: str) -> bytes:
    if text.startswith("base64:"):
        return base64.b64decode(text[len("base64:") :])
    return text.replace("$ID", identity).encode()
