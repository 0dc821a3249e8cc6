"""Tenants of a config."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from gateway.tenancy.tenant import Tenants


def test_a_tenant_is_what_the_config_says(tenants: Tenants) -> None:
    acme = tenants["acme"]
    assert acme.name == "acme"
    assert acme.mode == "code"
    assert acme.kernel == "python"
    assert acme.patterns == {"time": ("*", "!set_*")}
    assert acme.limits.requests_per_minute == 50
    assert acme.manifest.env == {"TOKEN": "canary-of-acme"}
    assert tenants["globex"].mode == "auto"
    assert tenants["globex"].auto_threshold == 4


@pytest.mark.parametrize("name", ["ACME", "acme ", "", "initech", "*"])
def test_there_is_no_default_tenant_and_names_match_exactly(tenants: Tenants, name: str) -> None:
    assert name not in tenants
    assert tenants.get(name) is None
    with pytest.raises(KeyError):
        tenants[name]


def test_tenants_are_a_mapping_that_nobody_can_change(tenants: Tenants) -> None:
    assert list(tenants) == ["acme", "globex"]
    assert len(tenants) == 2
    changeable: Any = tenants
    with pytest.raises(TypeError):
        changeable["initech"] = tenants["acme"]
    with pytest.raises(TypeError):
        changeable["acme"].patterns["time"] = ("*",)
    with pytest.raises(FrozenInstanceError):
        changeable["acme"].mode = "direct"


def test_environment_values_are_not_in_the_repr(tenants: Tenants) -> None:
    assert "canary" not in repr(tenants)
    assert "canary" not in repr(tenants["acme"])
