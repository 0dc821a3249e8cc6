"""``gateway call``: a client for the terminal, speaking 2026-07-28 to a running gateway."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from gateway.cli.terminal import CommandFailed

VERSION = "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
TIMEOUT_S = 600.0
DEFAULT_URL = "http://127.0.0.1:8080/mcp"


def call(
    tool: Annotated[str, typer.Argument(help="docs_search or execute_code.")],
    key: Annotated[str, typer.Option("--key", envvar="GATEWAY_KEY", help="API key; better from the environment.")],
    url: Annotated[str, typer.Option("--url", envvar="GATEWAY_URL", help="The gateway's MCP endpoint.")] = DEFAULT_URL,
    code: Annotated[str | None, typer.Option("--code", help="The script; default: stdin.")] = None,
    query: Annotated[str, typer.Option("--query", help="For docs_search.")] = "",
    names: Annotated[
        list[str] | None, typer.Option("--name", help="For docs_search: an exact name; repeatable.")
    ] = None,
    schemas: Annotated[bool, typer.Option("--schemas", help="For docs_search: with JSON Schemas.")] = False,
    arguments: Annotated[str | None, typer.Option("--args", help="For any other tool: its arguments as JSON.")] = None,
    show_usage: Annotated[bool, typer.Option("--usage", help="Print the metering block on stderr.")] = False,
) -> None:
    """Call a tool and print its text."""
    body: dict[str, Any]
    if tool == "execute_code":
        body = {"code": sys.stdin.read() if code is None else code}
    elif tool == "docs_search":
        body = {"query": query, "names": names, "includeSchemas": schemas}
        body = {name: value for name, value in body.items() if value}
    else:
        try:
            body = json.loads(arguments or "{}")
        except ValueError as error:
            raise typer.BadParameter(f"--args is no JSON: {error}") from None
    result = _post(url, key, tool, body)
    for block in result.get("content", ()):
        typer.echo(block["text"] if block.get("type") == "text" else json.dumps(block))
    if show_usage:
        typer.echo(json.dumps(result.get("_meta", {}).get("codemode-gateway/usage")), err=True)
    if result.get("isError"):
        raise typer.Exit(1)


def _post(url: str, key: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    import httpx2

    meta = {f"{PREFIX}protocolVersion": VERSION, f"{PREFIX}clientCapabilities": {}}
    try:
        response = httpx2.post(
            url,
            json={
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/call",
                "params": {"name": tool, "arguments": arguments, "_meta": meta},
            },
            headers={
                "Accept": "application/json, text/event-stream",
                "Authorization": f"Bearer {key}",
                "MCP-Protocol-Version": VERSION,
                "Mcp-Method": "tools/call",
                "Mcp-Name": tool,
            },
            timeout=TIMEOUT_S,
        )
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise CommandFailed(f"{url}: {error}") from None
    try:
        message = _message(response.text)
    except ValueError:
        raise CommandFailed(f"{url}: HTTP {response.status_code}, which is no MCP answer") from None
    if "error" in message:
        raise CommandFailed(f"{url}: {message['error'].get('message', 'refused')} (HTTP {response.status_code})")
    result: dict[str, Any] = message["result"]
    return result


def _message(text: str) -> dict[str, Any]:
    """The JSON answer, or the last message of an event stream, which a long run turns into."""
    if not text.lstrip().startswith("{"):
        text = next((line[5:] for line in reversed(text.splitlines()) if line.startswith("data:")), "")
    message = json.loads(text)
    if not isinstance(message, dict) or not {"result", "error"} & set(message):
        raise ValueError("not a response")
    return message
