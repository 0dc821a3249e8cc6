"""What ``--library NAME`` offers besides tools: resources, a template, a prompt, completion; all signed with the name.

Two libraries share the URIs under ``note://shared``, the template and the name of the prompt, so who answered can only
be told from the text. Storing a value with the tool ``put`` under the URI of a note changes that note.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tests.faulty.recording import Record, Request
from tests.faulty.rpc import INVALID_PARAMS, Body, Refusal, dumps

SHARED = "note://shared"
PIXEL = f"{SHARED}/pixel"
PAGE = f"{SHARED}/page/"
HUGE = "note://huge"
HUGE_BYTES = 20 * 1024 * 1024
CAPABILITIES: Mapping[str, Any] = {
    "resources": {"subscribe": True, "listChanged": True},
    "prompts": {"listChanged": True},
    "completions": {},
}

Members = dict[str, bytes]


def answer(name: str, request: Request, record: Record) -> Members | Body | None:
    """The members of the result, or of a resource the whole result; None for a method that is no library's.

    Raises:
        Refusal: a resource or prompt that does not exist.
    """
    method = _METHODS.get(request.message.method or "")
    return None if method is None else method(name, request, record)


def _text(request: Request, member: str) -> str:
    value = json.loads(request.message.params.get(member, "null"))
    if not isinstance(value, str):
        raise Refusal(INVALID_PARAMS, f"{member} must be a string")
    return value


def _resources(name: str, request: Request, record: Record) -> Members:
    uris = (SHARED, f"note://{name}", PIXEL, HUGE)
    return {"resources": dumps([{"uri": uri, "name": f"{name}'s {uri}"} for uri in uris])}


def _templates(name: str, request: Request, record: Record) -> Members:
    return {"resourceTemplates": dumps([{"uriTemplate": f"{PAGE}{{{name}}}", "name": f"a page of {name}"}])}


def _read(name: str, request: Request, record: Record) -> Members | Body:
    uri = _text(request, "uri")
    if uri == HUGE:
        return Body(b'{"contents":[{"uri":"%b","text":"' % HUGE.encode(), HUGE_BYTES, b'"}],"resultType":"complete"}')
    if uri == PIXEL:
        return {"contents": dumps([{"uri": uri, "mimeType": "image/png", "blob": "iVBORw=="}])}
    if uri not in (SHARED, f"note://{name}") and not uri.startswith(PAGE):
        raise Refusal(INVALID_PARAMS, f"{name} has no such resource", dumps({"uri": uri}))
    content = {"uri": uri, "mimeType": "text/plain", "text": f"{name}: {record.stored.get(uri, 'empty')} at {uri}"}
    return {"contents": dumps([content])}


def _prompts(name: str, request: Request, record: Record) -> Members:
    prompt = {"name": "greet", "description": f"{name}'s", "arguments": [{"name": "who", "required": True}]}
    return {"prompts": dumps([prompt])}


def _prompt(name: str, request: Request, record: Record) -> Members:
    if _text(request, "name") != "greet":
        raise Refusal(INVALID_PARAMS, f"{name} has no such prompt")
    who = json.loads(request.message.params.get("arguments", "{}")).get("who")
    return {"messages": dumps([{"role": "user", "content": {"type": "text", "text": f"{name} greets {who}"}}])}


def _complete(name: str, request: Request, record: Record) -> Members:
    """One value: who completes what."""
    ref, argument = (json.loads(request.message.params[member]) for member in ("ref", "argument"))
    value = f"{name} completes {ref.get('name') or ref.get('uri')} {argument['name']}={argument['value']}"
    return {"completion": dumps({"values": [value]})}


def _subscribe(name: str, request: Request, record: Record) -> Members:
    record.subscribed.add(_text(request, "uri"))
    return {}


def _unsubscribe(name: str, request: Request, record: Record) -> Members:
    record.subscribed.discard(_text(request, "uri"))
    return {}


_METHODS: Mapping[str, Callable[[str, Request, Record], Members | Body]] = {
    "resources/list": _resources,
    "resources/templates/list": _templates,
    "resources/read": _read,
    "resources/subscribe": _subscribe,
    "resources/unsubscribe": _unsubscribe,
    "prompts/list": _prompts,
    "prompts/get": _prompt,
    "completion/complete": _complete,
}
