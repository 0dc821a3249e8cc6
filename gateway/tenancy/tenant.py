"""Tenants as frozen snapshots of the config. A reload builds new ones; a request keeps the one it began with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from gateway.config import model


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant.

    Attributes:
        name: its name in ``gateway.yaml``.
        mode: what its ``/mcp`` shows: the two tools, the tools themselves, or whichever is smaller.
        auto_threshold: in mode ``auto``, below this many tools they are listed themselves.
        patterns: upstream name → tool name patterns, as written; the catalogue gives them their meaning.
        kernel: name of the kernel that runs its scripts.
        manifest: what its scripts may do. Hidden in repr: ``env`` may hold secrets.
        limits: what it may use over time.
    """

    name: str
    mode: Literal["code", "direct", "auto"]
    auto_threshold: int
    patterns: Mapping[str, tuple[str, ...]]
    kernel: str
    manifest: model.Manifest = field(repr=False)
    limits: model.Limits

    @classmethod
    def from_config(cls, name: str, config: model.Tenant) -> Tenant:
        return cls(
            name=name,
            mode=config.mode,
            auto_threshold=config.auto_threshold,
            patterns=MappingProxyType(dict(config.upstreams)),
            kernel=config.kernel,
            manifest=config.manifest,
            limits=config.limits,
        )


class Tenants(Mapping[str, Tenant]):
    """All tenants of one config by name. Immutable. Names match exactly; there is no default tenant."""

    def __init__(self, tenants: Mapping[str, Tenant]) -> None:
        self._by_name = MappingProxyType(dict(tenants))

    @classmethod
    def from_config(cls, config: model.GatewayConfig) -> Tenants:
        return cls({name: Tenant.from_config(name, tenant) for name, tenant in config.tenants.items()})

    def __getitem__(self, name: str) -> Tenant:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __repr__(self) -> str:
        return f"Tenants({', '.join(self)})"
