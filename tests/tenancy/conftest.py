"""A key ring in a temporary folder, and a config with two tenants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config.model import GatewayConfig, State
from gateway.tenancy.keyring import KeyRing
from gateway.tenancy.tenant import Tenants


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[KeyRing]:
    with KeyRing.open(State(), tmp_path) as opened:
        yield opened


@pytest.fixture
def tenants() -> Tenants:
    return Tenants.from_config(
        GatewayConfig.model_validate(
            {
                "version": 1,
                "upstreams": {"time": {"command": "time-server"}},
                "tenants": {
                    "acme": {
                        "upstreams": {"time": ["*", "!set_*"]},
                        "manifest": {"env": {"TOKEN": "canary-of-acme"}},
                        "limits": {
                            "requestsPerMinute": 50,
                            "toolCallsPerMinute": 100,
                            "tokensPerDay": 1_000,
                            "concurrentExecutions": 2,
                        },
                    },
                    "globex": {"mode": "auto", "upstreams": {}},
                },
            }
        )
    )
