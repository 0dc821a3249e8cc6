"""Which of the two protocol eras does a server speak? Pure decisions over what it answered.

Modern servers answer ``server/discover``; legacy ones (2024-11-05 … 2025-11-25) want the ``initialize`` handshake. The
connectors send the first, hand what came back to :func:`judge_probe`, and do what the verdict says. An outage is never
an
era: refusals, 5xx, 401, 403, 429 give no verdict.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from gateway.upstreams.base import LEGACY_VERSIONS, MODERN_VERSION, Era, ServerInfo
from gateway.upstreams.rpc import Response, RpcError

INVALID_PARAMS = -32602
HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022

_OUTAGE = frozenset({401, 403, 408, 425, 429})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do next.

    Attributes:
        kind: ``modern``; ``again`` (modern, but the probe must be repeated once); ``legacy`` (send ``initialize``);
            ``incompatible`` (no common version, report it); ``none`` (an outage, the era is as unknown as before).
        info: what the server told, when the verdict is ``modern`` and it did tell.
        reason: for ``incompatible``: the versions it offers.
    """

    kind: Literal["modern", "again", "legacy", "incompatible", "none"]
    info: ServerInfo | None = None
    reason: str = ""


def judge_probe(response: Response | None, status: int | None = None) -> Verdict:
    """The verdict on one answer to ``server/discover``.

    Args:
        response: the JSON-RPC answer, or None when there was none that could be read. Over stdio None means silence.
        status: the HTTP status; None over stdio.
    """
    if status is not None and (status >= 500 or status in _OUTAGE):
        return Verdict("none")
    if response is None:
        return Verdict("legacy" if status is None or 400 <= status < 500 else "none")
    if response.error is not None:
        return _judge_error(response.error)
    result = _object(response.result)
    versions = _strings(result.get("supportedVersions"))
    if MODERN_VERSION in versions:
        return Verdict("modern", info_from_discover(result))
    if versions and not set(versions) & set(LEGACY_VERSIONS):
        return Verdict("incompatible", reason=_offers(versions))
    return Verdict("legacy")


def _judge_error(error: RpcError) -> Verdict:
    if error.code in (HEADER_MISMATCH, MISSING_CAPABILITY):
        return Verdict("modern")
    if error.code == UNSUPPORTED_VERSION and isinstance(error.data, Mapping):
        versions = _strings(error.data.get("supported"))
        if MODERN_VERSION in versions:
            return Verdict("again")
        if versions and not set(versions) & set(LEGACY_VERSIONS):
            return Verdict("incompatible", reason=_offers(versions))
    return Verdict("legacy")


def was_modern_after_all(error: RpcError) -> bool:
    """Whether this refusal of ``initialize`` says that the probe was only late: probe once more."""
    return error.code == UNSUPPORTED_VERSION


def doubts_era(
    era: Era, method: str, response: Response | None, status: int | None = None
) -> Literal["no", "perhaps", "yes"]:
    """Whether an answer to an ordinary request makes sense only if the server has changed its era meanwhile.

    ``perhaps`` is worth a look (reading the list will tell), ``yes`` ends the connection.

    Args:
        method: what was asked; ``tools/list`` has no parameters that could be wrong.
        response, status: as in :func:`judge_probe`.
    """
    error = response.error if response is not None else None
    code = error.code if error is not None else None
    if code == UNSUPPORTED_VERSION:
        return "yes"
    if era == "modern":
        # A legacy server that is asked without a handshake: 400, 404 or 405, with an error of its own or with none.
        return "yes" if status in (400, 404, 405, 406) and code in (None, -32000, -32600) else "no"
    if status == 400 and code in (INVALID_PARAMS, HEADER_MISMATCH, MISSING_CAPABILITY):
        # A modern server misses _meta. Legacy ones have no such codes, or answer them with 200.
        return "yes" if method == "tools/list" else "perhaps"
    return "no"


def info_from_discover(result: Mapping[str, Any]) -> ServerInfo:
    meta = result.get("_meta")
    server = meta.get("io.modelcontextprotocol/serverInfo") if isinstance(meta, Mapping) else None
    return _info("modern", MODERN_VERSION, result, server)


def info_from_initialize(result: bytes) -> ServerInfo | None:
    """What the handshake told; None when the server chose a version that we do not speak, or answered no object."""
    told = _object(result)
    version = told.get("protocolVersion")
    if version not in LEGACY_VERSIONS:
        return None
    return _info("legacy", str(version), told, told.get("serverInfo"))


def _info(era: Era, version: str, told: Mapping[str, Any], server: Any) -> ServerInfo:
    server = server if isinstance(server, Mapping) else {}
    capabilities = told.get("capabilities")
    instructions = told.get("instructions")
    return ServerInfo(
        era=era,
        version=version,
        name=str(server.get("name", "")),
        server_version=str(server.get("version", "")),
        capabilities=capabilities if isinstance(capabilities, Mapping) else {},
        instructions=instructions if isinstance(instructions, str) else "",
    )


def announced_lists(info: ServerInfo) -> tuple[str, ...]:
    """Of which lists the server says that it will tell when they change: ``tools``, ``prompts``, ``resources``."""
    return tuple(kind for kind in ("tools", "prompts", "resources") if _claims(info, kind, "listChanged"))


def listen_params(lists: Collection[str], uris: Collection[str] = ()) -> dict[str, Any]:
    """Parameters of ``subscriptions/listen`` for changes of these lists, and updates of these resources."""
    wanted: dict[str, Any] = {f"{kind}ListChanged": True for kind in lists}
    return {"notifications": {**wanted, **({"resourceSubscriptions": list(uris)} if uris else {})}}


def announces_updates(info: ServerInfo) -> bool:
    """Whether the server can be asked to tell when a resource changes."""
    return _claims(info, "resources", "subscribe")


def _claims(info: ServerInfo, kind: str, what: str) -> bool:
    capability = info.capabilities.get(kind)
    return isinstance(capability, Mapping) and capability.get(what) is True


def _object(raw: bytes | None) -> Mapping[str, Any]:
    try:
        value = msgspec.json.decode(raw or b"{}")
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _strings(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _offers(versions: list[str]) -> str:
    return f"it speaks only {', '.join(version[:40] for version in versions[:5])}"
