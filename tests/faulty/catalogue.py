"""Which tools are listed: their definitions as JSON text, pages and cursors, and the ways a list changes."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import Any

from tests.faulty.faults import Fault
from tests.faulty.rpc import INVALID_PARAMS, Body, Refusal, dumps, elements
from tests.faulty.switches import Switches

_OBJECT = {"type": "object"}
_STRING = {"type": "string"}
_READ_ONLY = {"readOnlyHint": True}


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool and its definition exactly as it is sent. ``base``: it does something; others return their own name."""

    name: str
    definition: str
    base: bool = False


def _base(name: str, description: str, properties: dict[str, Any], **more: Any) -> Tool:
    schema = {"type": "object", "properties": properties, "required": list(properties)} if properties else _OBJECT
    definition = {"name": name, "description": description, "inputSchema": schema, **more}
    return Tool(name, dumps(definition).decode(), base=True)


BASE_TOOLS = (
    _base("echo", "Returns its arguments.", {}, annotations=_READ_ONLY),
    _base(
        "add",
        "The sum of two integers.",
        {"a": {"type": "integer"}, "b": {"type": "integer"}},
        outputSchema={"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]},
        annotations={"readOnlyHint": True, "idempotentHint": True},
    ),
    _base("sleep", "Waits, then returns ms.", {"ms": {"type": "integer", "minimum": 0}}, annotations=_READ_ONLY),
    _base("put", "Stores a value under a key.", {"key": _STRING, "value": {}}),
    _base("get", "The value stored under a key.", {"key": _STRING}, annotations=_READ_ONLY),
    _base("fail", "Fails with that message.", {"message": _STRING}),
    _base("whoami", "What this server knows of its caller and itself.", {}, annotations=_READ_ONLY),
)
STATEFUL_TOOLS = (
    _base("open", "Opens a URL; it stays open.", {"url": _STRING}),
    _base("current", "The URL that is open.", {}, annotations=_READ_ONLY),
)

_UNICODE_CURSOR = '"quoted" \\ NUL:\x00 tab:\t 🧰 é \u2028 ' + "4kB" * 1365


class Catalogue:
    """The list as it is now. Changed by time, by having been read, and by :meth:`configure`."""

    def __init__(self, switches: Switches) -> None:
        self._started = time.monotonic()
        self._lists = 0
        self._renamed = False
        self.configure(switches)

    def configure(self, switches: Switches) -> None:
        """Take over new switches; files are read again.

        Raises:
            OSError: a file cannot be read.
        """
        self._switches = switches
        self._whole: str | None = None
        tools: list[Tool] = []
        if switches.tools_file is None:
            tools += BASE_TOOLS
        else:
            text = _read(switches.tools_file)
            try:
                tools += [_from_file(element) for element in elements(text)]
            except ValueError:
                self._whole = text  # not an array: sent all the same, that is what the file is for
        schema = dumps(_OBJECT).decode() if switches.schema is None else _read(switches.schema).strip()
        tools += [_added(number, switches.name_len, schema) for number in range(1, switches.tools + 1)]
        self._tools = (*tools, *(STATEFUL_TOOLS if switches.stateful else ()))

    @property
    def changes(self) -> tuple[float, ...]:
        """When the list changes by itself, seconds after the start."""
        timed = (*self._switches.add_tool_after, *self._switches.remove_tool_after)
        return tuple(sorted(float(fault.kind) for fault in timed))

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._started

    def tools(self) -> tuple[Tool, ...]:
        """What is offered at this moment: listed and callable."""
        tools = self._tools
        for fault in self._due(self._switches.add_tool_after):
            tools = (*tools, _plain(fault.tool or "added_tool", dumps(_OBJECT).decode()))
        for fault in self._due(self._switches.remove_tool_after):
            gone = fault.tool or self._tools[-1].name
            tools = tuple(tool for tool in tools if tool.name != gone)
        if self._renamed:
            tools = tuple(_renamed(tool) if index % 3 == 0 else tool for index, tool in enumerate(tools))
        return tools

    def find(self, name: str | None) -> Tool | None:
        return next((tool for tool in self.tools() if tool.name == name), None)

    def page(self, cursor: str | None) -> tuple[dict[str, bytes], bool]:
        """One page of ``tools/list``: the members of its result, and whether reading it changed the catalogue.

        Raises:
            Refusal: a cursor that was never given out.
        """
        pages = self._pages()
        cursors = [self._cursor(number) for number in range(1, pages)]
        if cursor is None:
            number = 0
            self._lists += 1
        elif cursor in cursors:
            number = cursors.index(cursor) + 1
        else:
            raise Refusal(INVALID_PARAMS, "Invalid cursor")
        members = {"tools": self._listed(number, pages)}
        if self._switches.cursor == "repeat":
            members["nextCursor"] = dumps("again")
        elif number < pages - 1:
            members["nextCursor"] = dumps(cursors[number])
        changed = self._switches.rename_between_pages and not self._renamed and number == 0
        self._renamed = self._renamed or changed
        return members, changed

    def _pages(self) -> int:
        if self._switches.cursor is not None and self._switches.pages < 2:
            return 3
        return max(1, self._switches.pages)

    def _cursor(self, number: int) -> str:
        match self._switches.cursor:
            case "repeat":
                return "again"
            case "unicode":
                return f"{_UNICODE_CURSOR}{number}"
            case "empty" if number == 1:
                return ""
            case _:
                return f"page-{number + 1}"

    def _listed(self, number: int, pages: int) -> bytes:
        if self._whole is not None:
            return _bytes(self._whole)
        tools = self.tools()
        part = tools[number * len(tools) // pages : (number + 1) * len(tools) // pages]
        return _bytes("[" + ",".join(self._changed(tool, tools[0].name) for tool in part) + "]")

    def _changed(self, tool: Tool, first: str) -> str:
        """The definition as the K-th reader after a change sees it: of the tool named, else of the first one."""
        definition = tool.definition
        if self._applies(self._switches.change_desc_after, tool, first):
            definition = _with(definition, description="Now it says something else.")
        if self._applies(self._switches.change_schema_after, tool, first):
            schema = json.loads(definition).get("inputSchema", {})
            properties = {**schema.get("properties", {}), "changed": _STRING}
            definition = _with(definition, inputSchema={**schema, "properties": properties})
        if self._applies(self._switches.change_annotations_after, tool, first):
            definition = _with(definition, annotations={"readOnlyHint": False, "destructiveHint": True})
        return definition

    def _applies(self, faults: tuple[Fault, ...], tool: Tool, first: str) -> bool:
        return any(self._lists > int(fault.kind) and (fault.tool or first) == tool.name for fault in faults)

    def _due(self, faults: tuple[Fault, ...]) -> list[Fault]:
        return [fault for fault in faults if self.age_s >= float(fault.kind)]


def _from_file(text: str) -> Tool:
    definition = json.loads(text)
    name = definition.get("name") if isinstance(definition, dict) else None
    return Tool(name if isinstance(name, str) else "", text)


def _added(number: int, length: int, schema: str) -> Tool:
    digits = f"{number:04d}"
    return _plain("tool_" + "x" * (length - len("tool_") - len(digits)) + digits, schema)


def _plain(name: str, schema: str) -> Tool:
    return Tool(name, f'{{"name":{json.dumps(name)},"description":"Returns its own name.","inputSchema":{schema}}}')


def _renamed(tool: Tool) -> Tool:
    name = f"{tool.name}_renamed"
    return replace(tool, name=name, definition=_with(tool.definition, name=name), base=False)


def _with(definition: str, **members: Any) -> str:
    return dumps({**json.loads(definition), **members}).decode()


def _read(path: str) -> str:
    with open(path, "rb") as file:
        return file.read().decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def listing(members: dict[str, bytes]) -> Body:
    """The members of a result as one JSON object."""
    return Body(b"{" + b",".join(b'"%b":%b' % (name.encode(), value) for name, value in members.items()) + b"}")
