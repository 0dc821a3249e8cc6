"""What ``gateway.yaml`` means: frozen, validated values. Keys are camelCase, as in MCP and ``mcpServers``.

:class:`GatewayConfig` is the whole file. Every limit has a safe default; only ``version``, ``upstreams`` and
``tenants`` are required. Durations are seconds and sizes are bytes once validated (:mod:`gateway.config.units`).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, field_validator, model_validator
from pydantic.alias_generators import to_camel

from gateway.config.units import ByteSize, Duration, parse_duration

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
UPSTREAM_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]|_(?!_))*(?<!_)")
TENANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

Strings = Annotated[tuple[str, ...], Strict(False)]
"""A YAML list of strings, kept as a tuple."""


class Model(BaseModel):
    """Base of all config models: frozen, unknown keys are errors, camelCase on the outside, no silent coercion."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
        strict=True,
        hide_input_in_errors=True,
    )


def _default_duration(text: str) -> Any:
    return Field(default_factory=lambda: parse_duration(text), json_schema_extra={"default": text})


class Server(Model):
    """The tenant listener."""

    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535, description="0 chooses a free port.")
    public_url: str | None = Field(
        None,
        pattern=r"^https?://[^/\s]+$",
        description="How clients reach the gateway, without a path; its authority is an accepted Host.",
    )
    allowed_origins: Strings = Field((), description="Browser origins that may call, besides the gateway's own.")
    max_body: ByteSize = 4 * 1024 * 1024


class Admin(Model):
    """The operator's listener: metrics, health, API, console."""

    host: str = "127.0.0.1"
    port: int = Field(9090, ge=0, le=65535, description="0 chooses a free port.")
    token: str = Field("", description="Bearer token; required when the listener is not on loopback.")

    @model_validator(mode="after")
    def _token_off_loopback(self) -> Admin:
        if self.host not in LOOPBACK and not self.token:
            raise ValueError("admin.token is required when admin.host is not a loopback address")
        return self


class ToolOverride(Model):
    """Changes of one tool, by the name its upstream gives it."""

    alias: str | None = Field(None, pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="The name shown and called instead.")
    description: str | None = Field(None, description="Replaces the upstream's description.")
    disabled: bool = Field(False, description="Nobody sees or calls it.")


class _Upstream(Model):
    prefix: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_-]{0,48}$",
        description='Prefix of names in direct mode; default "<name>__", "" for bare names.',
    )
    tools: dict[str, ToolOverride] = Field(
        default_factory=dict, description="Overrides by the upstream's own tool name."
    )
    disabled: bool = Field(False, description="Keep the entry, do not start it.")
    isolation: Literal["shared"] = Field("shared", description="One connection serves all tenants.")
    start_timeout: Duration = _default_duration("60s")
    list_timeout: Duration = _default_duration("15s")
    call_timeout: Duration = _default_duration("20s")


class StdioUpstream(_Upstream):
    """A server that the gateway starts and talks to over its standard input and output."""

    type: Literal["stdio"] = "stdio"
    command: str = Field(min_length=1)
    args: Strings = ()
    env: dict[str, str] = Field(
        default_factory=dict, description="Added to a small allow-list of the gateway's own environment."
    )
    cwd: str | None = Field(None, description="Working directory; default: the folder of gateway.yaml.")


class HttpUpstream(_Upstream):
    """A server reached over streamable HTTP."""

    type: Literal["http", "streamable-http", "streamableHttp"] = "http"
    url: str = Field(pattern=r"^https?://[^\s]+$")
    headers: dict[str, str] = Field(default_factory=dict)


def _upstream_kind(value: Any) -> Any:
    """One clear sentence instead of the errors of both shapes: `command` makes it stdio, `url` makes it HTTP."""
    if isinstance(value, dict):
        if "command" in value and "url" in value:
            raise ValueError("has both command and url: a server is either started or reached, not both")
        if "command" not in value and "url" not in value:
            raise ValueError("needs either command (stdio) or url (streamable HTTP)")
        return (HttpUpstream if "url" in value else StdioUpstream).model_validate(value, by_alias=True, by_name=False)
    if isinstance(value, (StdioUpstream, HttpUpstream)):
        return value
    raise ValueError("must be a mapping with command or url")


Upstream = Annotated[StdioUpstream | HttpUpstream, BeforeValidator(_upstream_kind)]


class Manifest(Model):
    """What a tenant's scripts may do. Absent means denied."""

    allowed_hosts: Strings = ()
    allowed_read_paths: Strings = ()
    allowed_write_paths: Strings = ()
    env: dict[str, str] = Field(default_factory=dict)
    cpu_ms: int = Field(5_000, gt=0, le=600_000, description="CPU time of the script itself, milliseconds.")
    memory_limit_bytes: ByteSize = 64 * 1024 * 1024
    wall_ms: int = Field(30_000, gt=0, le=3_600_000, description="Wall time of one execution, milliseconds.")
    max_tool_calls: int = Field(100, ge=0, le=100_000)
    max_parallel_calls: int = Field(16, gt=0, le=1_000)
    max_output_tokens: int = Field(6_000, gt=0, le=25_000)


class Limits(Model):
    """What a tenant may use over time."""

    requests_per_minute: int = Field(600, gt=0)
    tool_calls_per_minute: int = Field(6_000, gt=0)
    tokens_per_day: int | None = Field(
        None, gt=0, description="Context tokens really sent, per UTC day; absent: no limit."
    )
    concurrent_executions: int = Field(8, gt=0)


class Tenant(Model):
    """Who asks: which upstreams and tools it sees, how, and within which limits."""

    mode: Literal["code", "direct", "auto"] = "code"
    auto_threshold: int = Field(4, ge=0, description="In mode auto: below this many tools /mcp lists them directly.")
    upstreams: dict[str, Strings] = Field(
        description='Upstream name → tool name patterns ("*", "search_*", "!search_delete"); later patterns win.'
    )
    kernel: str = "python"
    manifest: Manifest = Manifest()
    limits: Limits = Limits()


class Kernel(Model):
    """A sandbox engine and the size of its pool."""

    engine: str
    workers: int = Field(8, gt=0, le=1_000, description="How many executions may run at once; not a number of cores.")
    queue_timeout: Duration = _default_duration("5s")


class Metering(Model):
    """How tokens are counted and where usage is kept."""

    encoding: Literal["o200k_base", "cl100k_base"] = "o200k_base"
    rank_file: str | None = Field(
        None, description="Path of the encoding's rank file; default: the one that is installed."
    )
    ledger: str = Field("sqlite:///gateway.db", pattern=r"^sqlite:///.+$")


class State(Model):
    """Where keys and quotas live."""

    keys: str = Field("sqlite:///gateway.db", pattern=r"^sqlite:///.+$")
    pepper: str = Field(
        "", description="Secret of the key digests; default: a file beside the key store, made at first use."
    )
    quotas: Literal["memory://"] = "memory://"


class GatewayConfig(Model):
    """The whole of ``gateway.yaml``."""

    version: Literal[1]
    server: Server = Server()
    admin: Admin = Admin()
    upstreams: dict[str, Upstream]
    tenants: dict[str, Tenant]
    kernels: dict[str, Kernel] = Field(default_factory=lambda: {"python": Kernel(engine="monty")})
    metering: Metering = Metering()
    state: State = State()

    @field_validator("upstreams")
    @classmethod
    def _upstream_names(cls, upstreams: dict[str, Any]) -> dict[str, Any]:
        for name in upstreams:
            if not UPSTREAM_NAME.fullmatch(name) or len(name) > 64:
                raise ValueError(
                    f"{name!r} is not a usable upstream name: letters, digits, '-' and single '_' inside, 64 at most "
                    "(a double '_' separates upstream and tool)"
                )
        return upstreams

    @field_validator("tenants")
    @classmethod
    def _tenant_names(cls, tenants: dict[str, Tenant]) -> dict[str, Tenant]:
        for name in tenants:
            if not TENANT_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a usable tenant name: letters, digits, '.', '_', '-', 63 at most")
        return tenants
