"""The two tools as every model sees them: constant, whatever stands behind, and small.

These texts are the only ones that every conversation carries, so each word is paid for again and again: at most 240
tokens for both (o200k_base over compact JSON), held by a test. Whatever depends on the catalogue belongs into answers.
"""

from __future__ import annotations

from typing import Any

DOCS_SEARCH = "docs_search"
EXECUTE_CODE = "execute_code"

INSTRUCTIONS = (
    "All tools of the connected servers are reached through two: docs_search finds tools and shows how to call them, "
    "execute_code runs a script that calls them. Search first, then do the whole task in one script."
)

_DOCS_SEARCH: dict[str, Any] = {
    "name": DOCS_SEARCH,
    "description": (
        "Find tools and how to call them. Search here before execute_code. "
        "query: what you need, in words; empty: overview of servers. "
        "names: exact tools, full documentation. includeSchemas: adds JSON Schemas."
    ),
    "inputSchema": {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "names": {"type": "array", "items": {"type": "string"}},
            "includeSchemas": {"type": "boolean"},
        },
    },
    "annotations": {"readOnlyHint": True},
}

# no annotations: their defaults (destructive, open world) are the honest ones for a script that may call anything
_EXECUTE_CODE: dict[str, Any] = {
    "name": EXECUTE_CODE,
    "description": (
        "Run a Python script in a sandbox. Each tool is an async function: `await server__tool(arg=1)`; "
        'or `await call_tool("server__tool", {...})`. Run calls in parallel with asyncio.gather. '
        "A failing call raises; catch it. Only the last expression or top-level `return` comes back: "
        "filter and join in the script, return little. Runs share no state. No network, no third-party imports."
    ),
    "inputSchema": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
}

TOOLS: tuple[dict[str, Any], ...] = (_DOCS_SEARCH, _EXECUTE_CODE)
