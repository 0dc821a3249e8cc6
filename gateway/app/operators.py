"""What operators see: upstreams without credentials, and what no config schema can tell."""

from __future__ import annotations

import shlex
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from gateway.config.literal_secrets import secret_value
from gateway.config.model import GatewayConfig, HttpUpstream, StdioUpstream
from gateway.kernels.registry import ENGINES, check_manifest
from gateway.upstreams.environment import secrets_of
from gateway.upstreams.redact import MASK, Redactor
from gateway.upstreams.supervisor import Upstream


def kernel_problems(config: GatewayConfig) -> list[tuple[str, str]]:
    """What no schema can tell: tenants whose kernel is missing here or cannot enforce their manifest.

    Returns:
        (path in the config, message) pairs.
    """
    found: list[tuple[str, str]] = []
    for name, tenant in config.tenants.items():
        kernel = config.kernels.get(tenant.kernel)
        if kernel is None:
            continue  # the loader has said so, with its line
        if kernel.engine not in ENGINES:
            known = ", ".join(sorted(ENGINES))
            found.append((f"kernels.{tenant.kernel}.engine", f"no engine {kernel.engine!r} here; there is {known}"))
            continue
        found += [(f"tenants.{name}.manifest", text) for text in check_manifest(kernel.engine, tenant.manifest)]
    return found


def describe_upstream(upstream: Upstream) -> dict[str, Any]:
    """One upstream for an operator: state, stage and reason, never a credential."""
    status = upstream.status
    return {
        "name": upstream.name,
        "target": _target(upstream.config),
        "state": status.state,
        "since": status.since,
        "stage": status.stage or "",
        "reason": status.reason,
        "detail": status.detail,
        "retryAt": status.retry_at,
        "era": status.era or "",
        "version": status.version,
        "server": status.server,
        "tools": status.tools,
        "dropped": status.dropped,
        "restarts": status.restarts,
        "connectMs": None if status.connect_ms is None else round(status.connect_ms),
    }


def _target(config: StdioUpstream | HttpUpstream) -> str:
    """The command line or the address, without what looks like a credential."""
    if isinstance(config, HttpUpstream):
        parts = urlsplit(config.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    secrets = Redactor(secrets_of({}, config.env, config.args))
    return shlex.join([config.command, *(MASK if secret_value(arg) else secrets.hide(arg) for arg in config.args)])
