"""From a request to the messages that answer it; and what the server says without being asked.

Nothing here knows about lines, sockets or headers: a wire hands in what arrived together with a :class:`Channel` for
the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any, NoReturn

from tests.faulty import era, library, obstacles, replies, results, rpc, tools
from tests.faulty.catalogue import Catalogue, listing
from tests.faulty.channel import Channel, Stream
from tests.faulty.recording import Headers, Record, Request, Session
from tests.faulty.rpc import INVALID_PARAMS, METHOD_NOT_FOUND, Body, Incoming, Message, Refusal, dumps
from tests.faulty.script import Script
from tests.faulty.switches import BadSwitch, Switches, with_switch

SERVER_INFO = {"name": "faulty", "version": "1"}
ASK_DEADLINE_S = 30.0
ANNOUNCE_DEADLINE_S = 5.0

_POINTS = {
    "initialize": "init",
    "server/discover": "discover",
    "tools/list": "list",
    "tools/call": "call",
    "subscriptions/listen": "listen",
}
_ASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "elicitation": (
        "elicitation/create",
        {
            "mode": "form",
            "message": "What is your name?",
            "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        },
    ),
    "sampling": (
        "sampling/createMessage",
        {"messages": [{"role": "user", "content": {"type": "text", "text": "Say hello."}}], "maxTokens": 16},
    ),
    "roots": ("roots/list", {}),
}
_ONLY_AT_START = frozenset({"http", "path", "control", "fork_children", "ignore_sigterm", "own_group", "switches"})
_OF_THE_CATALOGUE = frozenset(
    {"tools", "name_len", "tools_file", "schema", "stateful", "pages", "cursor", "add_tool_after", "remove_tool_after"}
    | {"change_desc_after", "change_schema_after", "change_annotations_after", "rename_between_pages"}
)


class Server:
    """One faulty MCP server. The switches are a frozen value, replaced by :meth:`change`."""

    def __init__(self, switches: Switches, children: tuple[int, ...] = ()) -> None:
        self.switches = switches
        self.over_http = switches.http is not None
        self.catalogue = Catalogue(switches)
        self.record = Record(log=switches.log_calls, children=children)
        self.streams: set[Stream] = set()
        self._script = Script(switches.script)
        self._running: dict[Request, asyncio.Task[None]] = {}
        self._asked: dict[str, asyncio.Future[None]] = {}
        self._own_ids = 0
        self._wake = asyncio.Event()
        self._list_changed = False  # and not yet announced

    # ------------------------------------------------------------ what arrives

    def arrive(
        self, message: Incoming, headers: Headers = (), session: Session | None = None, point: str | None = None
    ) -> Request:
        """Make the plan for what has arrived, count it and log it."""
        version = next((value for name, value in headers if name.lower() == era.VERSION_HEADER), None)
        point = point or _POINTS.get(message.method or "", "other")
        points = {point}
        if point == "discover" and self.switches.era != "legacy":
            points.add("init")
        tool = message.name if point == "call" else None
        request = Request(
            point,
            tool,
            message,
            headers,
            session,
            era.is_modern(self.switches, message, version),
            self.record.plan(self.switches, frozenset(points), tool),
        )
        self.record.arrived(request)
        return request

    def notice(self, request: Request) -> None:
        """A notification, or a response to a request of ours."""
        message = request.message
        if message.method is None:
            identity = json.loads(message.id or "null")
            self.record.replies.append(identity)
            waiting = self._asked.pop(str(identity), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
        elif message.method == "notifications/initialized":
            self.record.handshakes["initialized"] += 1
        elif message.method == "notifications/cancelled" and not (request.modern and self.over_http):
            for running in list(self._running):
                if running.session is request.session and running.message.id == message.params.get("requestId"):
                    self.cancel(running)

    def cancel(self, request: Request) -> None:
        """The client no longer wants the answer; a late one comes all the same."""
        task = self._running.get(request)
        if task is not None:
            self.record.cancelled.append(request.message.id or "")
            if request.plan.first("reply", "late") is None:
                task.cancel()

    async def answer(self, request: Request, channel: Channel) -> None:
        """Answer one request, or fail to. Returns when the last message has been sent."""
        task = asyncio.current_task()
        assert task is not None
        self._running[request] = task
        stream = Stream("call", channel, legacy=not request.modern)
        if request.point == "call":
            self.record.call_begins()
            self.streams.add(stream)
        try:
            await self._answer(request, channel)
        finally:
            del self._running[request]
            if request.point == "call":
                self.record.in_flight -= 1
                self.streams.discard(stream)

    # ------------------------------------------------------------ answering

    async def _answer(self, request: Request, channel: Channel) -> None:
        if self._script.covers(request.point):
            await self._script.follow(request.point, replies.identity(request), channel)
            return
        await obstacles.meet(request)
        try:
            fault = request.plan.first("error")
            if fault is not None:
                raise replies.chosen_error(fault)
            era.check(request, over_http=self.over_http)
            body = await self._result(request, channel)
        except Refusal as refusal:
            chosen = request.plan.first("error") or request.plan.first("discover")
            status = 200 if chosen else era.http_status(refusal.code, modern=request.modern)
            await channel.send(Message(rpc.error(replies.identity(request), refusal), status=status))
            return
        if request.point != "listen":
            await replies.send(request, body, channel)

    async def _result(self, request: Request, channel: Channel) -> Body:
        match request.message.method:
            case "initialize" if not request.modern:
                return self._initialize(request)
            case "ping" | "logging/setLevel" if not request.modern:
                return Body(b"{}")
            case "server/discover":
                return self._discover(request)
            case "tools/list":
                return await self._list(request)
            case "tools/call":
                return await self._call(request, channel)
            case "subscriptions/listen" if request.modern:
                return await self._listen(request, channel)
        found = None if self.switches.library is None else library.answer(self.switches.library, request, self.record)
        if found is None:
            raise Refusal(METHOD_NOT_FOUND, "Method not found")
        return found if isinstance(found, Body) else listing({**found, **self._modern_members(request, cached=True)})

    def _initialize(self, request: Request) -> Body:
        self.record.handshakes["initialize"] += 1
        asked = json.loads(request.message.params.get("protocolVersion", "null"))
        version = era.claimed_legacy(self.switches, asked)
        if request.session is not None:
            request.session.version = version
        return Body(
            dumps(
                {
                    "protocolVersion": version,
                    "capabilities": {**self._capabilities(), "logging": {}},
                    "serverInfo": SERVER_INFO,
                    **self._instructions(),
                }
            )
        )

    def _discover(self, request: Request) -> Body:
        fault = request.plan.first("discover", "error", "noisy")
        if fault is not None or not request.modern:
            code = int(fault.argument) if fault is not None and fault.kind == "error" else METHOD_NOT_FOUND
            raise Refusal(code, "Method not found" if code == METHOD_NOT_FOUND else "It is an old server")
        self.record.handshakes["discover"] += 1
        return listing(
            {
                "supportedVersions": dumps(era.claimed_modern(self.switches)),
                "capabilities": dumps(self._capabilities()),
                **{name: dumps(text) for name, text in self._instructions().items()},
                **self._modern_members(request, cached=True),
            }
        )

    def _capabilities(self) -> dict[str, Any]:
        return {"tools": {"listChanged": True}, **(library.CAPABILITIES if self.switches.library else {})}

    def _instructions(self) -> dict[str, str]:
        return {} if self.switches.instructions is None else {"instructions": self.switches.instructions}

    async def _list(self, request: Request) -> Body:
        cursor = json.loads(request.message.params.get("cursor", "null"))
        if cursor is not None and not isinstance(cursor, str):
            raise Refusal(INVALID_PARAMS, "Invalid cursor")
        if cursor is None:
            self.record.lists += 1
        members, changed = self.catalogue.page(cursor)
        if changed:
            self._list_changed = True
            self._wake.set()
        return listing({**members, **self._modern_members(request, cached=True)})

    async def _call(self, request: Request, channel: Channel) -> Body:
        tool = self.catalogue.find(request.tool)
        if tool is None:
            raise Refusal(INVALID_PARAMS, f"Unknown tool: {request.tool}")
        ask = request.plan.first("ask")
        if ask is not None and request.modern and "inputResponses" not in request.message.params:
            method, params = _ASKS.get(ask.kind, (ask.kind, {}))
            return listing(
                {
                    "resultType": b'"input_required"',
                    "inputRequests": dumps({"ask": {"method": method, "params": params}}),
                    "requestState": b'"faulty-state"',
                }
            )
        if ask is not None and not request.modern:
            await self._ask(ask.kind, channel)
        if request.session is not None:
            request.session.calls += 1
        outcome = await tools.run(tool, request, self.record)
        if tool.name == "put" and self.switches.library is not None and not outcome.is_error:
            await self._updated(self.record.puts[-1][0])
        await replies.send_progress(request, channel)
        return results.write(outcome, request.plan, self._modern_members(request))

    async def _ask(self, what: str, channel: Channel) -> None:
        """Ask the client and wait, not for ever, for its answer."""
        method, params = _ASKS.get(what, (what, {}))
        identity = self._own_id("ask")
        answered = self._asked[identity] = asyncio.get_running_loop().create_future()
        await channel.send(Message(rpc.request(identity, method, params), final=False))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_DEADLINE_S):
                await answered
        self._asked.pop(identity, None)

    async def _listen(self, request: Request, channel: Channel) -> NoReturn:
        """Acknowledge, then stay until the client ends it."""
        wanted = json.loads(request.message.params.get("notifications", "{}"))
        honoured: dict[str, Any] = {"toolsListChanged": True} if wanted.get("toolsListChanged") is True else {}
        uris = frozenset(wanted.get("resourceSubscriptions", ()) if self.switches.library else ())
        if uris:
            honoured["resourceSubscriptions"] = sorted(uris)
        identity = replies.identity(request)
        tag = {f"{era.META}subscriptionId": json.loads(identity)}
        acknowledged = rpc.notification(
            "notifications/subscriptions/acknowledged", {"_meta": tag, "notifications": honoured}
        )
        await channel.send(Message(acknowledged, final=False))
        kind = "listen" if "toolsListChanged" in honoured else "quiet"
        stream = Stream(kind, channel, legacy=False, subscription=identity, uris=uris)
        self.streams.add(stream)
        try:
            await obstacles.for_ever()
        finally:
            self.streams.discard(stream)

    def _modern_members(self, request: Request, *, cached: bool = False) -> dict[str, bytes]:
        if not request.modern:
            return {}
        hints = {"ttlMs": dumps(self.switches.ttl), "cacheScope": dumps(self.switches.cache_scope)} if cached else {}
        return {"resultType": b'"complete"', **hints, "_meta": dumps({f"{era.META}serverInfo": SERVER_INFO})}

    # ------------------------------------------------------------ what it says by itself

    async def announce(self, kind: str) -> None:
        """Say ``list_changed``, ``log`` or ``ping`` on every stream where it belongs."""
        if kind == "list_changed":
            heard = {s for s in self.streams if s.kind in ("process", "get", "listen")}
        else:
            busy = {s for s in self.streams if s.kind == "call"}
            heard = busy or {s for s in self.streams if s.kind in ("process", "get")}
        for stream in heard:
            if kind == "ping" and not stream.legacy:
                continue
            try:
                async with asyncio.timeout(ANNOUNCE_DEADLINE_S):
                    await stream.channel.send(Message(self._announcement(kind, stream), final=False))
            except (ConnectionError, TimeoutError):
                self.streams.discard(stream)

    async def _updated(self, uri: str) -> None:
        """Tell who subscribed to a resource that it has changed."""
        for stream in list(self.streams):
            legacy = stream.kind in ("process", "get") and uri in self.record.subscribed
            if legacy or uri in stream.uris:
                update = rpc.notification("notifications/resources/updated", {"uri": uri, **self._tag(stream)})
                await stream.channel.send(Message(update, final=False))

    def _tag(self, stream: Stream) -> dict[str, Any]:
        if stream.subscription is None:
            return {}
        return {"_meta": {f"{era.META}subscriptionId": json.loads(stream.subscription)}}

    def _announcement(self, kind: str, stream: Stream) -> Body:
        if kind == "ping":
            return rpc.request(self._own_id("ping"), "ping", {})
        if kind == "log":
            return rpc.notification("notifications/message", {"level": "info", "data": "a line of the log"})
        return rpc.notification("notifications/tools/list_changed", self._tag(stream) or None)

    async def background(self) -> NoReturn:
        """Announce what ``--notify`` says, and changes of the catalogue, each at its time."""
        due: dict[Any, float] = {}
        told = 0.0
        while True:
            age = self.catalogue.age_s
            changes = self.catalogue.changes
            changed = self._list_changed or any(told < change <= age for change in changes)
            told = age
            self._list_changed = False
            self._wake.clear()
            if changed and not self.switches.quiet_changes:
                await self.announce("list_changed")
            due = {each: due.get(each, age + each.period_s) for each in self.switches.notify}
            for each in due:
                while due[each] <= age:
                    await self.announce(each.kind)
                    due[each] += each.period_s
            next_s = min([*due.values(), *(change for change in changes if change > age)], default=age + 3600)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.005, next_s - self.catalogue.age_s)):
                    await self._wake.wait()

    def change(self, switch: str, value: str | None, *, add: bool = False) -> None:
        """Set a switch while running; None takes it back; ``add`` keeps the values it has.

        Raises:
            BadSwitch, OSError: the server goes on as before.
        """
        key = switch.removeprefix("--").replace("-", "_")
        if key in _ONLY_AT_START:
            raise BadSwitch(f"--{key.replace('_', '-')} can only be given at the start")
        switches = with_switch(self.switches, f"--{key.replace('_', '-')}", value, add=add)
        if key in _OF_THE_CATALOGUE:
            self.catalogue.configure(switches)
            self._list_changed = True
        if key == "script":
            self._script = Script(switches.script)
        self.switches = switches
        self.record.log = switches.log_calls
        self.record.forget_counts(key)
        self._wake.set()

    def _own_id(self, what: str) -> str:
        self._own_ids += 1
        return f"faulty-{what}-{self._own_ids}"
