"""The record of one tool: what its upstream published, and the names it goes by here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool of one upstream. Immutable; made once when the upstream's list is read.

    A tool has three spellings, and everything that takes a name accepts each of them:

    * ``name``: ``<upstream>__<tool>`` with the tool spelled as its upstream does (``git__get-log``);
    * ``identifier``: the same as a Python and JavaScript identifier (``git__get_log``), unique in the catalogue;
    * ``direct_name``: the name in direct mode, ``[A-Za-z0-9_-]{1,64}`` as model providers demand.

    Attributes:
        upstream: name of the upstream in ``gateway.yaml``.
        raw_name: the name to send to the upstream.
        title: display name, or "".
        description: the upstream's text (hostile: whoever prints it cleans it), or the override from the config.
        input_schema: JSON Schema of the arguments, an object; never None.
        output_schema: JSON Schema of ``structuredContent``, or None.
        annotations: the upstream's hints, unverified.
        definition: the whole tool object as the upstream sent it, unknown keys too (only ``x-mcp-header`` is taken
            out); direct mode lists it under another name.
        digest: SHA-256 of name, description, schemas and annotations in canonical JSON; changes when the tool does.
    """

    upstream: str
    raw_name: str
    name: str
    identifier: str
    direct_name: str
    title: str
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None
    annotations: Mapping[str, Any]
    definition: Mapping[str, Any]
    digest: str

    @property
    def shown_name(self) -> str:
        """The tool's name without its upstream: the alias, or ``raw_name``."""
        return self.name[len(self.upstream) + 2 :]

    @property
    def wraps_result(self) -> bool:
        """FastMCP wraps a result that is no object as ``{"result": …}`` and marks the schema; scripts get the inside.

        A lone ``result`` without the marker is the tool's own shape.
        """
        return self.output_schema is not None and self.output_schema.get("x-fastmcp-wrap-result") is True
