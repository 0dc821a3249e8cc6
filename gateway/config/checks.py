"""What must fit together: names that refer to other parts of the file, and the chain of deadlines.

The checks read the plain values, not the validated model, so that they report also when something else is wrong.
Whatever has the wrong shape is passed over here; validation reports it.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

from gateway.config.messages import did_you_mean, value_at
from gateway.config.model import GatewayConfig, Manifest, StdioUpstream, Tenant
from gateway.config.problem import Finding, Loc
from gateway.config.units import parse_duration


def cross_check(data: Any, gaps: Set[Loc] = frozenset()) -> Iterator[Finding]:
    """Everything that no single field can know.

    Args:
        data: the plain values of the file, variables inserted.
        gaps: mappings that lost an entry to another problem; a name that is missing there is not missed.
    """
    upstreams = _mapping(data, "upstreams")
    yield from _same_identifier(upstreams)
    names_known = isinstance(value_at(data, ("upstreams",)), dict) and ("upstreams",) not in gaps
    for name in _mapping(data, "tenants"):
        tenant: Loc = ("tenants", name)
        for upstream, patterns in _mapping(data, *tenant, "upstreams").items():
            here: Loc = (*tenant, "upstreams", upstream)
            if names_known and upstream not in upstreams:
                yield Finding(here, "there is no such upstream" + did_you_mean(upstream, upstreams), on_key=True)
            yield from _empty_patterns(here, patterns)
        if ("kernels",) not in gaps:
            yield from _unknown_kernel(data, tenant)
    yield from _deadlines(data)


def _same_identifier(upstreams: dict[str, Any]) -> Iterator[Finding]:
    """In scripts ``my-db`` and ``my_db`` would both be ``my_db__…``."""
    first: dict[str, str] = {}
    for name in upstreams:
        other = first.setdefault(name.replace("-", "_"), name)
        if other != name:
            message = f"becomes the same name in scripts as upstream {other}: '-' is written '_' there"
            yield Finding(("upstreams", name), message, on_key=True)


def _empty_patterns(here: Loc, patterns: Any) -> Iterator[Finding]:
    if isinstance(patterns, list):
        for index, pattern in enumerate(patterns):
            if isinstance(pattern, str) and not pattern.removeprefix("!").strip():
                yield Finding((*here, index), "an empty pattern matches no tool: write a name, or * for all")


def _unknown_kernel(data: Any, tenant: Loc) -> Iterator[Finding]:
    known = value_at(data, ("kernels",))
    if known is None:
        known = GatewayConfig.model_fields["kernels"].get_default(call_default_factory=True)
    kernel = _mapping(data, *tenant).get("kernel", default := Tenant.model_fields["kernel"].default)
    if "kernel" not in _mapping(data, *tenant) and value_at(data, (*tenant, "mode")) == "direct":
        return  # it runs no scripts
    if isinstance(known, dict) and isinstance(kernel, str) and kernel not in known:
        which = "such kernel" if "kernel" in _mapping(data, *tenant) else f"kernel {default}, which is the default"
        yield Finding((*tenant, "kernel"), f"there is no {which}" + did_you_mean(kernel, known))


def _deadlines(data: Any) -> Iterator[Finding]:
    """A script must live as long as one call of each upstream it may use, or the call's own deadline means nothing.

    Where the tenant sets wallMs the finding is there, otherwise at the upstream's callTimeout: one of them is not the
    default.
    """
    slow: dict[str, str] = {}
    for name, tenant in _mapping(data, "tenants").items():
        if not isinstance(tenant, dict) or tenant.get("mode") == "direct":
            continue
        manifest = _mapping(tenant, "manifest")
        wall_ms = manifest.get("wallMs", Manifest().wall_ms)
        if not isinstance(wall_ms, int) or isinstance(wall_ms, bool) or wall_ms <= 0:
            continue
        timeouts = {upstream: _call_timeout_ms(data, upstream) for upstream in _mapping(tenant, "upstreams")}
        longer = [upstream for upstream, timeout in timeouts.items() if timeout > wall_ms]
        if longer and "wallMs" in manifest:
            slowest = max(longer, key=lambda upstream: timeouts[upstream])
            yield Finding(
                ("tenants", name, "manifest", "wallMs"),
                f"{wall_ms} ms is less than callTimeout of upstream {slowest} ({timeouts[slowest]:g} ms): "
                "a script must be able to outlive one call",
            )
        elif longer:
            for upstream in longer:
                slow.setdefault(upstream, name)
    for upstream, tenant_name in slow.items():
        yield Finding(
            ("upstreams", upstream, "callTimeout"),
            f"{_call_timeout_ms(data, upstream):g} ms is more than manifest.wallMs of tenant {tenant_name} "
            f"({Manifest().wall_ms} ms, the default): a script must be able to outlive one call",
        )


def _call_timeout_ms(data: Any, upstream: str) -> float:
    """0 when the upstream is not there, disabled, or its deadline is not readable."""
    entry = value_at(data, ("upstreams", upstream))
    if not isinstance(entry, dict) or entry.get("disabled") is True:
        return 0
    if "callTimeout" not in entry:
        default: float = StdioUpstream.model_fields["call_timeout"].get_default(call_default_factory=True)
        return default * 1000
    try:
        return float(parse_duration(entry["callTimeout"])) * 1000
    except ValueError:
        return 0


def _mapping(data: Any, *loc: str | int) -> dict[str, Any]:
    value = value_at(data, loc)
    return value if isinstance(value, dict) else {}
