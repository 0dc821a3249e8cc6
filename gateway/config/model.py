"""What ``gateway.yaml`` means: frozen, validated values. Keys are camelCase, as in MCP and ``mcpServers``.

:class:`GatewayConfig` is the whole file. Every limit has a safe default; only ``version``, ``upstreams`` and
``tenants`` are required. Durations are seconds and sizes are bytes once validated (:mod:`gateway.config.units`).
What may hold a secret stays out of every ``repr``.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict, model_validator
from pydantic.alias_generators import to_camel

from gateway.config.units import ByteSize, Duration, parse_duration

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
UPSTREAM_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]|_(?!_)){0,63}(?<!_)")
TENANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

ORIGIN_PATTERN = r"^https?://[^/?#@\s]+$"
URL_PATTERN = r"^https?://[^\s]+$"
PREFIX_PATTERN = r"^[A-Za-z0-9_-]{0,48}$"
ALIAS_PATTERN = r"^[A-Za-z0-9_.-]{1,64}$"
SQLITE_PATTERN = r"^sqlite:///[^:?#].*$"
PATH_PATTERN = r"^/"

PATTERN_SENTENCES: Final = {
    ORIGIN_PATTERN: "must be http:// or https:// with a host and perhaps a port, and no path",
    URL_PATTERN: "must be a URL that begins with http:// or https://, without spaces",
    PREFIX_PATTERN: "must be letters, digits, '_' and '-', 48 at most",
    ALIAS_PATTERN: "must be 1 to 64 letters, digits, '_', '.' and '-'",
    SQLITE_PATTERN: "must be sqlite:///FILE (relative to the folder of this file) or sqlite:////ABSOLUTE/FILE",
    PATH_PATTERN: "must be an absolute path: what a script may reach must not depend on where the gateway was started",
}
"""The patterns of this module in words, for error messages."""

Strings = Annotated[tuple[str, ...], Strict(False)]
"""A YAML list of strings, kept as a tuple."""
Paths = Annotated[tuple[Annotated[str, Field(pattern=PATH_PATTERN)], ...], Strict(False)]
"""A YAML list of absolute paths."""


def _upstream_name(name: str) -> str:
    if not UPSTREAM_NAME.fullmatch(name):
        raise ValueError(
            "is not a usable upstream name: letters, digits, '-' and single '_' inside, 64 at most "
            "(a double '_' separates upstream and tool)"
        )
    return name


def _tenant_name(name: str) -> str:
    if not TENANT_NAME.fullmatch(name):
        raise ValueError("is not a usable tenant name: letters, digits, '.', '_', '-', 63 at most")
    return name


def _variable_name(name: str) -> str:
    if not name or "=" in name:
        raise ValueError("is not a usable name of an environment variable")
    return name


def _header_name(name: str) -> str:
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):  # RFC 9110, 5.6.2: token
        raise ValueError("is not a usable header name")
    return name


def _header_value(value: str) -> str:
    if re.search(r"[\x00-\x08\x0a-\x1f\x7f]", value):
        raise ValueError("must not hold a line break or a control character (a header could be smuggled in)")
    return value


def _web_address(url: str) -> str:
    """What a pattern cannot see: that there is a host, and a port that exists."""
    try:
        parts = urlsplit(url)
        valid = bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ValueError("must have a host and, if any, a port from 1 to 65535")
    return url


Environment = dict[Annotated[str, AfterValidator(_variable_name)], str]
Headers = dict[Annotated[str, AfterValidator(_header_name)], Annotated[str, AfterValidator(_header_value)]]
Origin = Annotated[str, Field(pattern=ORIGIN_PATTERN), AfterValidator(_web_address)]
WebAddress = Annotated[str, Field(pattern=URL_PATTERN), AfterValidator(_web_address)]


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


def _default_duration(text: str, description: str) -> Any:
    return Field(
        default_factory=lambda: parse_duration(text), description=description, json_schema_extra={"default": text}
    )


class Server(Model):
    """The tenant listener."""

    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="0 chooses a free port.")
    public_url: Origin | None = Field(
        None,
        description="How clients reach the gateway, without a path; its authority is an accepted Host.",
    )
    allowed_origins: Strings = Field((), description="Browser origins that may call, besides the gateway's own.")
    max_body: ByteSize = Field(4 * 1024 * 1024, description="Largest request body, such as 65536 or 4MiB.")
    max_headers: int = Field(100, ge=20, le=1_000, description="Most headers of one request.")
    max_header_bytes: Annotated[ByteSize, Field(ge=4096, le=1024 * 1024)] = Field(
        32 * 1024, description="Request line and headers of one request together, such as 32KiB."
    )
    header_timeout: Duration = _default_duration("5s", "How long the headers of a request may take to arrive.")
    body_timeout: Duration = _default_duration(
        "30s", "How long the body of a request may take to arrive; a third of it may pass without a byte."
    )


class Admin(Model):
    """The operator's listener: metrics, health, API, console."""

    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(9090, ge=0, le=65535, description="0 chooses a free port.")
    token: str = Field("", repr=False, description="Bearer token; required when the listener is not on loopback.")

    @model_validator(mode="after")
    def _token_off_loopback(self) -> Admin:
        if self.host not in LOOPBACK and not self.token:
            raise ValueError("a token is required when host is not a loopback address")
        return self


class ToolOverride(Model):
    """Changes of one tool, by the name its upstream gives it."""

    alias: str | None = Field(None, pattern=ALIAS_PATTERN, description="The name shown and called instead.")
    description: str | None = Field(None, description="Replaces the upstream's description.")
    disabled: bool = Field(False, description="Nobody sees or calls it.")


class _Upstream(Model):
    prefix: str | None = Field(
        None,
        pattern=PREFIX_PATTERN,
        description='Prefix of names in direct mode; default "<name>__", "" for bare names.',
    )
    tools: dict[str, ToolOverride] = Field(
        default_factory=dict, description="Overrides by the upstream's own tool name."
    )
    disabled: bool = Field(False, description="Keep the entry, do not start it.")
    client_capabilities: Annotated[tuple[Literal["elicitation", "sampling", "roots"], ...], Strict(False)] = Field(
        (),
        description="What the server may ask of clients in direct mode (servers before 2026-07-28 are told once).",
    )
    isolation: Literal["shared"] = Field("shared", description="One connection serves all tenants.")
    start_timeout: Duration = _default_duration("60s", "How long starting and the handshake may take.")
    list_timeout: Duration = _default_duration("15s", "How long reading the list of tools may take.")
    call_timeout: Duration = _default_duration(
        "20s", "How long one tool call may take; not more than wallMs of the tenants that use it."
    )


class StdioUpstream(_Upstream):
    """A server that the gateway starts and talks to over its standard input and output."""

    type: Literal["stdio"] = Field("stdio", description="May be left out: command says it.")
    command: str = Field(min_length=1, description="The program: a name on PATH, or a path.")
    args: Strings = Field((), repr=False, description="Its arguments, one a list item; no shell reads them.")
    env: Environment = Field(
        default_factory=dict,
        repr=False,
        description="Added to a small allow-list of the gateway's own environment.",
    )
    cwd: str | None = Field(
        None, min_length=1, description="Working directory, relative to the folder of this file, which is the default."
    )


class HttpUpstream(_Upstream):
    """A server reached over streamable HTTP, or over the HTTP+SSE transport before it."""

    type: Literal["http", "streamable-http", "streamableHttp", "sse"] = Field(
        "http", description="May be left out: url says it, and HTTP+SSE is found out; sse spares the finding."
    )
    url: WebAddress = Field(repr=False, description="The MCP endpoint.")
    headers: Headers = Field(default_factory=dict, repr=False, description="Sent with every request.")


def upstream_model(entry: Any) -> type[StdioUpstream] | type[HttpUpstream]:
    """Which kind of upstream an entry is meant to be: ``command`` makes it stdio, ``url`` alone makes it HTTP.

    An entry with both or neither is read as stdio: its errors then say what is too much or missing.
    """
    return HttpUpstream if isinstance(entry, dict) and "url" in entry and "command" not in entry else StdioUpstream


def _upstream(value: Any) -> Any:
    """The errors of the one shape that is meant, not of both."""
    if isinstance(value, (StdioUpstream, HttpUpstream)):
        return value
    return upstream_model(value).model_validate(value, by_alias=True, by_name=False)


Upstream = Annotated[StdioUpstream | HttpUpstream, BeforeValidator(_upstream)]


class Manifest(Model):
    """What a tenant's scripts may do. Absent means denied."""

    allowed_hosts: Strings = Field((), description="Hosts that fetch() may reach; globs, * is one label.")
    allowed_read_paths: Paths = Field((), description="Files and folders that scripts may read.")
    allowed_write_paths: Paths = Field((), description="Files and folders that scripts may write.")
    env: Environment = Field(default_factory=dict, repr=False, description="What scripts see as their environment.")
    cpu_ms: int = Field(5_000, gt=0, le=600_000, description="CPU time of the script itself, milliseconds.")
    memory_limit_bytes: ByteSize = Field(
        64 * 1024 * 1024, description="Memory of the script, such as 67108864 or 64MiB."
    )
    wall_ms: int = Field(30_000, gt=0, le=3_600_000, description="Wall time of one execution, milliseconds.")
    max_tool_calls: int = Field(100, ge=0, le=100_000, description="Tool calls of one execution.")
    max_parallel_calls: int = Field(16, gt=0, le=1_000, description="Tool calls of one execution at the same time.")
    max_output_tokens: int = Field(6_000, gt=0, le=25_000, description="Size of an answer; the rest is cut, and said.")


class Limits(Model):
    """What a tenant may use over time."""

    requests_per_minute: int = Field(600, gt=0, description="MCP requests.")
    tool_calls_per_minute: int = Field(6_000, gt=0, description="Calls of upstream tools, also from within scripts.")
    tokens_per_day: int | None = Field(
        None, gt=0, description="Context tokens really sent, per UTC day; absent: no limit."
    )
    concurrent_executions: int = Field(8, gt=0, description="Scripts that run at the same time.")


class Tenant(Model):
    """Who asks: which upstreams and tools it sees, how, and within which limits."""

    mode: Literal["code", "direct", "auto"] = Field(
        "code",
        description="What /mcp offers: code (two tools), direct (the tools themselves), auto (direct while few).",
    )
    auto_threshold: int = Field(4, ge=0, description="In mode auto: below this many tools /mcp lists them directly.")
    upstreams: dict[str, Strings] = Field(
        description='Upstream name → tool name patterns ("*", "search_*", "!search_delete"); an exclusion always wins.'
    )
    kernel: str = Field("python", description="Which of the kernels runs its scripts.")
    manifest: Manifest = Field(Manifest(), description="What its scripts may do and use.")
    limits: Limits = Field(Limits(), description="What it may use over time.")


class Kernel(Model):
    """A sandbox engine and the size of its pool."""

    engine: str = Field(min_length=1, description="A sandbox engine, such as monty; `gateway doctor` lists them.")
    workers: int = Field(8, gt=0, le=1_000, description="How many executions may run at once; not a number of cores.")
    queue_timeout: Duration = _default_duration("5s", "How long an execution may wait for a worker.")


class Metering(Model):
    """How tokens are counted and where usage is kept."""

    encoding: Literal["o200k_base", "cl100k_base"] = Field("o200k_base", description="The tokeniser that counts.")
    rank_file: str | None = Field(
        None, description="Path of the encoding's rank file; default: the one that is installed."
    )
    ledger: str = Field(
        "sqlite:///gateway.db", pattern=SQLITE_PATTERN, description="Where usage is recorded: sqlite:///FILE."
    )


class State(Model):
    """Where keys and quotas live."""

    keys: str = Field("sqlite:///gateway.db", pattern=SQLITE_PATTERN, description="Where keys live: sqlite:///FILE.")
    pepper: str = Field(
        "",
        repr=False,
        description="Secret of the key digests; default: a file beside the key store, made at first use.",
    )
    quotas: Literal["memory://"] = Field("memory://", description="Where quotas are counted.")


class GatewayConfig(Model):
    """The whole of ``gateway.yaml``."""

    version: Literal[1] = Field(description="Version of this file's format.")
    server: Server = Field(Server(), description="The listener of the tenants.")
    admin: Admin = Field(Admin(), description="The listener of the operator: metrics, health, API, console.")
    upstreams: dict[Annotated[str, AfterValidator(_upstream_name)], Upstream] = Field(
        description="The MCP servers by name; the shape of mcpServers.",
    )
    tenants: dict[Annotated[str, AfterValidator(_tenant_name)], Tenant] = Field(
        description="Who may use which of their tools, by name."
    )
    kernels: dict[str, Kernel] = Field(
        default_factory=lambda: {"python": Kernel(engine="monty")},
        description="Sandboxes by name; default: python on monty.",
    )
    metering: Metering = Field(Metering(), description="How tokens are counted and where usage is kept.")
    state: State = Field(State(), description="Where keys and quotas live.")
