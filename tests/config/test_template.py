"""What ``gateway init`` writes."""

from __future__ import annotations

import re

import jsonschema_rs

from gateway.config.document import parse
from gateway.config.loader import loads
from gateway.config.model import Limits, Manifest
from gateway.config.schema import json_schema
from gateway.config.template import TEMPLATE


def test_the_template_loads_without_any_variable_and_says_the_defaults() -> None:
    config = loads(TEMPLATE, "gateway.yaml", {})
    tenant = config.tenants["default"]
    assert tenant.upstreams == {"time": ("*",)}
    assert (tenant.manifest, tenant.limits) == (Manifest(), Limits())
    assert (config.server.port, config.admin.token) == (8080, "")


def test_editors_know_its_schema_from_the_first_line_and_accept_it() -> None:
    assert TEMPLATE.startswith("# yaml-language-server: $schema=")
    jsonschema_rs.validator_for(json_schema()).validate(parse(TEMPLATE, "f").value)


def test_what_is_commented_out_is_valid_too() -> None:
    body = TEMPLATE[TEMPLATE.index("version: 1") :]
    text = re.sub(r"^( +)# ", r"\1", body, flags=re.MULTILINE)
    config = loads(text, "f", {"SEARCH_TOKEN": "x"})
    assert sorted(config.upstreams) == ["files", "search", "time"]
    assert config.server.public_url
    assert config.tenants["default"].limits.tokens_per_day
