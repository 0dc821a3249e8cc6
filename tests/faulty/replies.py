"""The answer to a request: once and truly, unless ``--reply``, ``--reply-id`` and ``--error`` say otherwise."""

from __future__ import annotations

import asyncio
import json
import re

from tests.faulty import results, rpc
from tests.faulty.channel import Channel
from tests.faulty.faults import Fault, seconds, whole
from tests.faulty.recording import Request
from tests.faulty.rpc import Body, Message, Refusal


async def send(request: Request, body: Body, channel: Channel) -> None:
    """Send the result ``body``, with whatever comes before it or in its place."""
    to = identity(request)
    true = Message(rpc.result(to, body))
    match request.plan.first("reply"):
        case Fault(kind="malformed"):
            true = Message(Body(b"".join(true.body.chunks(len(true.body) // 2))))
        case Fault(kind="deep", argument=levels):
            members = {"resultType": b'"complete"'} if request.modern else {}
            true = Message(rpc.result(to, results.deep(whole(levels), members)))
        case Fault(kind="not-rpc"):
            true = Message(Body(b'{"greeting":"JSON, but no JSON-RPC"}'))
        case Fault(kind="late", argument=after):
            await asyncio.sleep(seconds(after))
        case Fault(kind="dup"):
            await channel.send(Message(true.body, final=False))
        case Fault(kind="error-then-result"):
            failed = Refusal(-32000, "It failed, or so it says")
            await channel.send(Message(rpc.error(to, failed), final=False))
        case Fault(kind="unasked"):
            await channel.send(Message(rpc.result('"never-asked"', body), final=False))
    await channel.send(true)


async def send_progress(request: Request, channel: Channel) -> None:
    """What ``--sse progress:N`` says before the result, to a client that gave a token."""
    fault = request.plan.first("sse", "progress")
    token = request.message.meta.get("progressToken")
    if fault is None or token is None:
        return
    total = whole(fault.argument)
    for step in range(1, total + 1):
        await asyncio.sleep(request.plan.switches.progress_every)
        params = {"progressToken": token, "progress": step, "total": total, "message": f"step {step} of {total}"}
        await channel.send(Message(rpc.notification("notifications/progress", params), final=False))


def identity(request: Request) -> str:
    """JSON text of the id to answer with."""
    true = request.message.id or "null"
    match request.plan.first("reply_id"):
        case Fault(kind="string"):
            return true if true.startswith('"') else f'"{true}"'
        case Fault(kind="null"):
            return "null"
        case Fault(kind="zero"):
            return "0"
    return true


def chosen_error(fault: Fault) -> Refusal:
    """What ``--error CODE:MESSAGE[:DATA]`` says; DATA is a JSON object, array or string."""
    code, text = int(fault.kind), fault.argument
    for colon in re.finditer(r':(?=[{["])', text):
        data = text[colon.end() :]
        try:
            json.loads(data)
        except ValueError:
            continue
        return Refusal(code, text[: colon.start()], data.encode())
    return Refusal(code, text)
