"""The JSON Schema of ``gateway.yaml``: what editors complete and check. ``gateway.schema.json`` is this, committed.

``python -m gateway.config.schema > gateway.schema.json`` renews it. The schema is a help while writing; the loader
decides. Where a value is more than any text, a ``${…}`` is accepted in its place, as the loader does.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from gateway.config.model import TENANT_NAME, GatewayConfig

_VARIABLE = {
    "type": "string",
    "pattern": r"^\$\{[^{}]+\}$",
    "description": "Without quotes: ${VAR}, ${VAR:-default} or ${file:/absolute/path}.",
}
_TEXT_WITH_VARIABLE = {
    "type": "string",
    "pattern": r"\$\{[^{}]+\}",
    "description": "A text that holds ${VAR}, ${VAR:-default} or ${file:/absolute/path}.",
}
# the same rule as UPSTREAM_NAME, without the look-behind that not every validator has
_UPSTREAM_NAMES = {"pattern": "^[A-Za-z0-9](?:[A-Za-z0-9-]|_(?=[A-Za-z0-9-])){0,63}$"}
_TENANT_NAMES = {"pattern": f"^{TENANT_NAME.pattern}$"}


def json_schema() -> dict[str, Any]:
    """The schema, draft 2020-12, with the keys as they are written in the file. A new value at each call."""
    generated = GatewayConfig.model_json_schema(by_alias=True, mode="validation")
    definitions = {name: _rewrite(definition) for name, definition in generated.pop("$defs").items()}
    root = _rewrite(generated)
    root["properties"]["upstreams"]["propertyNames"] = dict(_UPSTREAM_NAMES)
    root["properties"]["tenants"]["propertyNames"] = dict(_TENANT_NAMES)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gateway.yaml of codemode-gateway",
        **root,
        "$defs": {**definitions, "Variable": dict(_VARIABLE), "TextWithVariable": dict(_TEXT_WITH_VARIABLE)},
    }


def render() -> str:
    """The text of ``gateway.schema.json``: the same for the same models, byte for byte."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _rewrite(schema: dict[str, Any]) -> dict[str, Any]:
    """Drop generated noise, and allow a variable wherever a value is restricted."""
    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "title" or (key == "default" and "$ref" in schema):
            continue
        if key == "description":
            result[key] = value.replace("``", "`")
        elif key == "properties":
            result[key] = {name: _rewrite(item) for name, item in value.items()}
        elif key in ("additionalProperties", "items") and isinstance(value, dict):
            result[key] = _rewrite(value)
        elif key == "anyOf":
            result[key] = _flat_alternatives(value)
        else:
            result[key] = value
    return _or_variable(result)


def _flat_alternatives(alternatives: list[dict[str, Any]]) -> list[dict[str, Any]]:
    flat: list[dict[str, Any]] = []
    for alternative in map(_rewrite, alternatives):
        for item in alternative["anyOf"] if alternative.keys() == {"anyOf"} else [alternative]:
            if item not in flat:
                flat.append(item)
    return flat


def _or_variable(schema: dict[str, Any]) -> dict[str, Any]:
    kind = schema.get("type")
    if kind in ("integer", "number", "boolean"):
        variable = "Variable"
    elif kind == "string" and schema.keys() & {"enum", "const", "pattern"}:
        variable = "TextWithVariable"
    else:
        return schema
    outside: dict[str, Any] = {key: schema[key] for key in ("description", "default") if key in schema}
    inside = {key: value for key, value in schema.items() if key not in outside}
    return {**outside, "anyOf": [inside, {"$ref": f"#/$defs/{variable}"}]}


if __name__ == "__main__":
    sys.stdout.write(render())
