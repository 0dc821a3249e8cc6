"""The tools that the scenarios of the conformance suite call, by the names and texts that they expect.

What each must do is written in the suite's own descriptions of its server scenarios. Results are written as they look
on the wire.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from mcp import types
from mcp.server.subscriptions import InMemorySubscriptionBus, PromptsListChanged, ToolsListChanged

from tests.conformance.asking import Call, elicitation, form, sampling

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
"""One red pixel as PNG, in base64."""
SILENCE = "UklGRigAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQQAAAAAAAAA"
"""Two samples of silence as WAV, in base64."""

Run = Callable[[Call], Awaitable[dict[str, Any]]]


@dataclass(frozen=True)
class Fixture:
    """A tool: what it publishes, and what it does; ``run`` returns the result as it looks on the wire."""

    name: str
    description: str
    schema: dict[str, Any]
    run: Run

    def published(self) -> types.Tool:
        return types.Tool(name=self.name, description=self.description, input_schema=self.schema)


TOOLS: dict[str, Fixture] = {}


def tool(schema: dict[str, Any] | None = None) -> Callable[[Run], Run]:
    """Publish a function under its name; its docstring is the description."""

    def publish(run: Run) -> Run:
        described = schema or {"type": "object", "additionalProperties": False}
        TOOLS[run.__name__] = Fixture(run.__name__, (run.__doc__ or "").strip(), described, run)
        return run

    return publish


def text(content: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": content}]}


def embedded(uri: str, mime_type: str, content: str) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "text": content}}


# ------------------------------------------------------------------ content


@tool()
async def test_simple_text(call: Call) -> dict[str, Any]:
    """Returns text."""
    return text("This is a simple text response for testing.")


@tool()
async def test_image_content(call: Call) -> dict[str, Any]:
    """Returns an image."""
    return {"content": [{"type": "image", "data": PIXEL, "mimeType": "image/png"}]}


@tool()
async def test_audio_content(call: Call) -> dict[str, Any]:
    """Returns a sound."""
    return {"content": [{"type": "audio", "data": SILENCE, "mimeType": "audio/wav"}]}


@tool()
async def test_embedded_resource(call: Call) -> dict[str, Any]:
    """Returns a resource."""
    content = "This is an embedded resource content."
    return {"content": [embedded("test://embedded-resource", "text/plain", content)]}


@tool()
async def test_multiple_content_types(call: Call) -> dict[str, Any]:
    """Returns text, an image and a resource."""
    content = json.dumps({"test": "data", "value": 123})
    return {
        "content": [
            {"type": "text", "text": "Multiple content types test:"},
            {"type": "image", "data": PIXEL, "mimeType": "image/png"},
            embedded("test://mixed-content-resource", "application/json", content),
        ]
    }


@tool()
async def test_error_handling(call: Call) -> dict[str, Any]:
    """Always fails."""
    return {**text("This tool intentionally returns an error for testing"), "isError": True}


# ------------------------------------------------------------------ while it runs


async def _log(call: Call, message: str) -> None:
    await call.context.session.send_log_message("info", message, "everything", call.context.request_id)


@tool()
async def test_tool_with_logging(call: Call) -> dict[str, Any]:
    """Logs three messages while it runs."""
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await _log(call, message)
        await asyncio.sleep(0.05)
    return text("Three messages were logged.")


@tool()
async def test_logging_tool(call: Call) -> dict[str, Any]:
    """Logs one message, to who asked for it."""
    await _log(call, "a message of test_logging_tool")
    return text("A message was logged, if it was asked for.")


@tool()
async def test_tool_with_progress(call: Call) -> dict[str, Any]:
    """Reports progress three times."""
    for progress in (0, 50, 100):
        await call.context.session.report_progress(progress, 100, f"{progress} of 100")
        await asyncio.sleep(0.05)
    return text("Progress was reported, if it was asked for.")


@tool()
async def test_reconnection(call: Call) -> dict[str, Any]:
    """Ends its event stream half way; the client fetches the rest (legacy, over HTTP)."""
    if call.context.close_sse_stream is not None:
        await call.context.close_sse_stream()
        await asyncio.sleep(0.1)
    return text("The stream was taken up again.")


# ------------------------------------------------------------------ questions to the client


@tool(form(prompt={"type": "string"}))
async def test_sampling(call: Call) -> dict[str, Any]:
    """Asks the client's model."""
    answers = await call.ask(answer=sampling(call.arguments["prompt"]))
    return text(f"LLM response: {answers['answer']['content']['text']}")


@tool(form(message={"type": "string"}))
async def test_elicitation(call: Call) -> dict[str, Any]:
    """Asks the user for a name and an address."""
    schema = form(
        username={"type": "string", "description": "User's response"},
        email={"type": "string", "description": "User's email address"},
    )
    answers = await call.ask(user=elicitation(call.arguments["message"], schema))
    return text(f"User response: {_told(answers['user'])}")


@tool()
async def test_elicitation_sep1034_defaults(call: Call) -> dict[str, Any]:
    """Asks the user with a form that has default values of all types."""
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": True},
        },
    }
    answers = await call.ask(user=elicitation("Please check these values", schema))
    return text(f"Elicitation completed: {_told(answers['user'])}")


@tool()
async def test_elicitation_sep1330_enums(call: Call) -> dict[str, Any]:
    """Asks the user with a form that has all kinds of choices."""
    plain = ["option1", "option2", "option3"]
    titled = [{"const": f"value{n}", "title": f"Choice {n}"} for n in (1, 2, 3)]
    schema = {
        "type": "object",
        "properties": {
            "untitledSingle": {"type": "string", "enum": plain},
            "titledSingle": {"type": "string", "oneOf": titled},
            "legacyEnum": {
                "type": "string",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": plain}},
            "titledMulti": {"type": "array", "items": {"anyOf": titled}},
        },
    }
    answers = await call.ask(user=elicitation("Please choose", schema))
    return text(f"Elicitation completed: {_told(answers['user'])}")


@tool()
async def test_missing_capability(call: Call) -> dict[str, Any]:
    """Cannot do without the client's model."""
    await call.ask(answer=sampling("Say something"))
    return text("The client has a model.")


@tool()
async def test_streaming_elicitation(call: Call) -> dict[str, Any]:
    """Asks the user after it has reported progress."""
    await call.context.session.report_progress(1, 2)
    answers = await call.ask(user=elicitation("Go on?", form(ok={"type": "boolean"})))
    return text(f"User response: {_told(answers['user'])}")


def _told(answer: dict[str, Any]) -> str:
    return f"action={answer['action']}, content={json.dumps(answer.get('content', {}))}"


# ------------------------------------------------------------------ questions in several rounds

_NAME = {"type": "string"}
_YES_OR_NO = form(ok={"type": "boolean"})


@tool()
async def test_input_required_result_elicitation(call: Call) -> dict[str, Any]:
    """Asks the user for a name."""
    answers = await call.ask(user_name=elicitation("What is your name?", form(name=_NAME)))
    return text(f"Hello, {_field(answers['user_name'], 'name')}!")


@tool()
async def test_input_required_result_sampling(call: Call) -> dict[str, Any]:
    """Asks the client's model for a capital."""
    answers = await call.ask(capital_question=sampling("What is the capital of France?"))
    return text(f"The model says: {answers['capital_question']['content']['text']}")


@tool()
async def test_input_required_result_list_roots(call: Call) -> dict[str, Any]:
    """Asks the client for its roots."""
    answers = await call.ask(client_roots=types.ListRootsRequest())
    return text("Roots: " + ", ".join(str(root["uri"]) for root in answers["client_roots"]["roots"]))


@tool()
async def test_input_required_result_request_state(call: Call) -> dict[str, Any]:
    """Asks the user to confirm, and wants its state back."""
    await call.ask("asked", confirm=elicitation("Please confirm", _YES_OR_NO))
    return text("state-ok")


@tool()
async def test_input_required_result_tampered_state(call: Call) -> dict[str, Any]:
    """Asks the user to confirm; its state is sealed."""
    await call.ask("sealed", confirm=elicitation("Please confirm", _YES_OR_NO))
    return text("The state is what it was.")


@tool()
async def test_input_required_result_multiple_inputs(call: Call) -> dict[str, Any]:
    """Asks the user, the model and the client at once."""
    answers = await call.ask(
        "asked",
        user_name=elicitation("What is your name?", form(name=_NAME)),
        greeting=sampling("Generate a greeting", 50),
        client_roots=types.ListRootsRequest(),
    )
    return text(f"{answers['greeting']['content']['text']}, {_field(answers['user_name'], 'name')}")


@tool()
async def test_input_required_result_multi_round(call: Call) -> dict[str, Any]:
    """Asks the user two questions, one after the other."""
    name = call.state.removeprefix("name ")
    if name == call.state:  # the first question is still open
        first = await call.ask("nothing", step1=elicitation("Step 1: What is your name?", form(name=_NAME)))
        name = _field(first["step1"], "name")
    question = elicitation("Step 2: What is your favorite color?", form(color={"type": "string"}))
    second = await call.ask(f"name {name}", step2=question)
    return text(f"{name} likes {_field(second['step2'], 'color')}.")


@tool()
async def test_input_required_result_capabilities(call: Call) -> dict[str, Any]:
    """Asks for what the client can answer, and for nothing else."""
    wanted: dict[str, types.InputRequest] = {
        "greeting": sampling("Generate a greeting"),
        "confirm": elicitation("Please confirm", _YES_OR_NO),
    }
    answers = await call.ask(None, **{key: want for key, want in wanted.items() if call.declared(want.method)})
    return text("Answered: " + ", ".join(sorted(answers)))


def _field(answer: dict[str, Any], name: str) -> str:
    return str(answer.get("content", {}).get(name, "nobody"))


# ------------------------------------------------------------------ schemas


@tool(
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    }
)
async def json_schema_2020_12_tool(call: Call) -> dict[str, Any]:
    """Tool with JSON Schema 2020-12 features"""
    return text(json.dumps(call.arguments))


@tool(
    {
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "query": {"type": "string"},
        },
        "required": ["region"],
    }
)
async def test_custom_header(call: Call) -> dict[str, Any]:
    """Wants its argument `region` in a header too (modern, over HTTP)."""
    return text(f"region={call.arguments['region']}")


# ------------------------------------------------------------------ changes of the lists

BUS = InMemorySubscriptionBus()
"""Where changes are told to the event streams of the modern era."""
LONGER: set[str] = set()
"""Which lists have one entry more at the moment; changed by the two triggers."""


@tool()
async def test_trigger_tool_change(call: Call) -> dict[str, Any]:
    """Adds a tool, or takes it away again."""
    LONGER.symmetric_difference_update({"tools"})
    await BUS.publish(ToolsListChanged())
    if not call.modern:
        await call.context.session.send_tool_list_changed()
    return text("The list of tools has changed.")


@tool()
async def test_trigger_prompt_change(call: Call) -> dict[str, Any]:
    """Adds a prompt, or takes it away again."""
    LONGER.symmetric_difference_update({"prompts"})
    await BUS.publish(PromptsListChanged())
    if not call.modern:
        await call.context.session.send_prompt_list_changed()
    return text("The list of prompts has changed.")
