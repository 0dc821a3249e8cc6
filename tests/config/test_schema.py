"""The schema for editors: committed, and of one mind with the loader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from gateway.config.document import parse
from gateway.config.schema import json_schema, render

ROOT = Path(__file__).parents[2]
EXAMPLE = Path(__file__).parent / "example.yaml"


def accepts(text: str) -> bool:
    return jsonschema_rs.validator_for(json_schema()).is_valid(parse(text, "f").value)


def test_the_committed_file_is_what_the_models_say() -> None:
    committed = (ROOT / "gateway.schema.json").read_text()
    assert committed == render(), "renew it: python -m gateway.config.schema > gateway.schema.json"
    assert jsonschema_rs.meta.is_valid(json_schema())


def test_every_key_is_explained() -> None:
    def properties(schema: Any, path: str) -> Iterator[tuple[str, Any]]:
        for name, item in schema.get("properties", {}).items():
            yield f"{path}.{name}", item

    schema = json_schema()
    definitions = schema["$defs"]
    every = [*properties(schema, ""), *(pair for name in definitions for pair in properties(definitions[name], name))]
    assert len(every) > 60
    explained = {
        path
        for path, item in every
        if "description" in item or "description" in definitions.get(item.get("$ref", "").rpartition("/")[2], {})
    }
    assert {path for path, _ in every} - explained == set()


def test_a_config_of_every_section_is_accepted() -> None:
    assert accepts(EXAMPLE.read_text())


@pytest.mark.parametrize(
    "section",
    [
        "servers: {}",
        "server: {prot: 1}",
        "server: {max_body: 1}",
        "server: {port: '80'}",
        "server: {port: 70000}",
        "server: {publicUrl: gateway.example}",
        "metering: {encoding: gpt2}",
        "state: {quotas: 'memory'}",
        "kernels: {python: {}}",
        "kernels: {python: {engine: monty, queueTimeout: 5}}",
    ],
)
def test_what_the_loader_refuses_is_refused(section: str) -> None:
    assert not accepts(f"version: 1\nupstreams: {{}}\ntenants: {{}}\n{section}\n")


@pytest.mark.parametrize(
    "upstreams",
    [
        "a__b: {command: x}",
        "a_: {command: x}",
        "_a: {command: x}",
        "a: {}",
        "a: {command: x, url: 'http://x'}",
        "a: {comand: x}",
        "a: {command: x, callTimeout: 5}",
    ],
)
def test_an_upstream_that_the_loader_refuses_is_refused(upstreams: str) -> None:
    assert not accepts(f"version: 1\nupstreams: {{{upstreams}}}\ntenants: {{}}\n")


def test_a_variable_may_stand_for_a_number_a_boolean_or_a_choice() -> None:
    assert accepts("""
version: 1
server: {port: ${PORT:-8080}, publicUrl: "https://${HOST}", maxBody: ${MAX}}
upstreams: {a_b: {command: x, disabled: ${OFF:-false}, callTimeout: "${T}"}}
tenants: {t: {mode: ${MODE}, upstreams: {}, limits: {tokensPerDay: ${DAY}}}}
""")
