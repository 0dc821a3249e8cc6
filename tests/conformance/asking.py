"""Input from a client, asked for in the way of its era, for the fixtures of :mod:`tests.conformance.everything`.

A fixture asks with :meth:`Call.ask` and goes on with the answers. In the legacy era each question is a request of the
server that is waited for; in the modern era the call ends with an ``InputRequiredResult`` and is made again with the
answers, so a fixture runs from its beginning once a round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

MISSING_CAPABILITY = -32021
_ANSWERS: dict[str, tuple[str, type[types.Result]]] = {
    "elicitation/create": ("elicitation", types.ElicitResult),
    "sampling/createMessage": ("sampling", types.CreateMessageResult),
    "roots/list": ("roots", types.ListRootsResult),
}
"""Method → the capability that a client needs for it, and what it answers."""


class InputNeeded(Exception):
    """Ends a round of the modern era; ``result`` is what the client gets."""

    def __init__(self, result: types.InputRequiredResult) -> None:
        super().__init__("input is needed")
        self.result = result


@dataclass(frozen=True)
class Call:
    """One ``tools/call`` or ``prompts/get`` as a fixture sees it.

    Attributes:
        state: what the fixture said in the round before, "" in the first.
    """

    context: ServerRequestContext[Any, Any]
    params: types.CallToolRequestParams | types.GetPromptRequestParams

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.params.arguments or {})

    @property
    def modern(self) -> bool:
        return self.context.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def state(self) -> str:
        return self.params.request_state or ""

    def declared(self, method: str) -> bool:
        """Whether the client said that it can answer such a request."""
        capabilities = self.context.session.client_capabilities
        return capabilities is not None and getattr(capabilities, _ANSWERS[method][0]) is not None

    async def ask(self, state: str | None = None, **requests: types.InputRequest) -> dict[str, dict[str, Any]]:
        """The client's answers under the same keys, as they look on the wire.

        Args:
            state: comes back with the answers; answers without it do not count.

        Raises:
            MCPError: the client cannot answer one of them.
            InputNeeded: the answers come with the next round.
        """
        for request in requests.values():
            if not self.declared(request.method):
                capability = _ANSWERS[request.method][0]
                required: dict[str, Any] = {"requiredCapabilities": {capability: {}}}
                raise MCPError(MISSING_CAPABILITY, f"the client did not declare {capability}", required)
        if not self.modern:
            return {key: await self._send(request) for key, request in requests.items()}
        given = self.params.input_responses or {}
        answers = {
            key: given[key]
            for key, request in requests.items()
            if isinstance(given.get(key), _ANSWERS[request.method][1])
        }
        if len(answers) < len(requests) or (state is not None and self.state != state):
            raise InputNeeded(types.InputRequiredResult(input_requests=requests, request_state=state))
        return {key: _wire(answer) for key, answer in answers.items()}

    async def _send(self, request: types.InputRequest) -> dict[str, Any]:
        related = ServerMessageMetadata(related_request_id=self.context.request_id)
        return _wire(
            await self.context.session.send_request(request, _ANSWERS[request.method][1], 30.0, metadata=related)
        )


def elicitation(message: str, schema: dict[str, Any]) -> types.ElicitRequest:
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def form(**properties: dict[str, Any]) -> dict[str, Any]:
    """The schema of a form whose fields must all be filled."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def sampling(prompt: str, max_tokens: int = 100) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=prompt))
    return types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(messages=[message], max_tokens=max_tokens)
    )


def _wire(result: types.Result) -> dict[str, Any]:
    return result.model_dump(mode="json", by_alias=True, exclude_none=True)
