"""The command line as one frozen value: :class:`Switches`, whose fields are the switches.

How a single fault is written and limited is told in :mod:`tests.faulty.faults`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tests.faulty.faults import (
    Announcement,
    Fault,
    after_lists,
    amount,
    announcement,
    at_point,
    choice,
    death,
    flag,
    integer,
    non_empty,
    nothing,
    of_kind,
    on_off,
    optional,
    rpc_error,
    seconds,
    size,
    status,
    whole,
)


class BadSwitch(ValueError):
    """A switch that does not exist, or a value it does not take; the text is one line for stderr."""


def _one(parse: Callable[[str], Any], default: Any, form: str, help_text: str) -> Any:
    return field(default=default, metadata={"parse": parse, "form": form, "help": help_text, "many": False})


def _many(parse: Callable[[str], Any], form: str, help_text: str) -> Any:
    return field(default=(), metadata={"parse": parse, "form": form, "help": help_text, "many": True})


@dataclass(frozen=True, slots=True)
class Switches:
    """Everything the command line says. A field ``init_delay`` is the switch ``--init-delay``."""

    # wire
    http: int | None = _one(whole, None, "PORT", "streamable HTTP on 127.0.0.1; 0 chooses a port and prints it")
    path: str = _one(non_empty, "/mcp", "PATH", "where the endpoint is")
    era: str = _one(choice("legacy", "modern", "both"), "both", "legacy|modern|both", "which handshake it knows")
    protocol: str | None = _one(non_empty, None, "VERSION", "the version it claims, whatever it is asked for")
    instructions: str | None = _one(non_empty, None, "TEXT", "what it tells about itself in the handshake")
    discover: tuple[Fault, ...] = _many(
        of_kind("discover", error=integer, silent=nothing, noisy=nothing),
        "error:CODE|silent|noisy",
        "how an old server reacts to server/discover; noisy: 200 kB on stderr before an error",
    )
    sessions: bool = _one(on_off, True, "on|off", "session ids (legacy HTTP)")
    session_ttl: int | None = _one(whole, None, "K", "after K calls a session id gets 404")
    answers: str = _one(choice("json", "sse"), "json", "json|sse", "form of HTTP answers")
    require_auth: str | None = _one(non_empty, None, "VALUE", "401 unless the Authorization header equals VALUE")
    # catalogue
    tools: int = _one(whole, 0, "N", "adds N tools, each returning its own raw name and its arguments")
    name_len: int = _one(whole, 0, "L", "pads their names in the middle, to L characters")
    tools_file: str | None = _one(non_empty, None, "FILE", "a tools array instead of the base tools, sent as it is")
    schema: str | None = _one(non_empty, None, "FILE", "one inputSchema for all added tools, sent as it is")
    stateful: bool = _one(flag, False, "", "adds open(url) and current(), one state per session or process")
    library: str | None = _one(non_empty, None, "NAME", "resources, a prompt and completion, signed with NAME")
    pages: int = _one(whole, 1, "P", "pages of tools/list")
    cursor: str | None = _one(
        choice("repeat", "unicode", "empty"), None, "repeat|unicode|empty", "strange cursors; three pages by default"
    )
    change_desc_after: tuple[Fault, ...] = _many(after_lists, "K", "after K lists a description differs")
    change_schema_after: tuple[Fault, ...] = _many(after_lists, "K", "after K lists an inputSchema differs")
    change_annotations_after: tuple[Fault, ...] = _many(after_lists, "K", "after K lists the hints differ")
    add_tool_after: tuple[Fault, ...] = _many(amount("any", seconds), "S", "a tool appears S seconds after the start")
    remove_tool_after: tuple[Fault, ...] = _many(amount("any", seconds), "S", "the last tool disappears")
    rename_between_pages: bool = _one(flag, False, "", "a third of the tools get other names once page 1 was read")
    quiet_changes: bool = _one(flag, False, "", "changes of the catalogue are not announced")
    ttl: int = _one(whole, 0, "MS", "modern cache hint ttlMs")
    cache_scope: str = _one(choice("public", "private"), "private", "public|private", "modern cache hint")
    # time and death
    init_delay: tuple[Fault, ...] = _many(amount("init", seconds), "S", "the handshake is slow")
    list_delay: tuple[Fault, ...] = _many(amount("list", seconds), "S", "lists are slow")
    call_delay: tuple[Fault, ...] = _many(amount("call", seconds), "S", "calls are slow")
    hang: tuple[Fault, ...] = _many(
        at_point("init", "discover", "list", "call"), "init|discover|list|call", "reads the request, never answers"
    )
    die_on: tuple[Fault, ...] = _many(death, "start|init|call:K|mid-answer", "exits there")
    exit_code: int = _one(whole, 1, "N", "with this code")
    fork_children: int = _one(
        whole, 0, "N", "child processes that outlive it, for two minutes, unless someone ends them"
    )
    ignore_sigterm: bool = _one(
        flag, False, "", "it and its last child ignore SIGTERM, it also stays when its stdin closes"
    )
    own_group: bool = _one(flag, False, "", "its last child leaves the process group and the session")
    read_slowly: int | None = _one(size, None, "BYTES", "bytes a second it reads")
    drip: tuple[Fault, ...] = _many(amount("call", size), "BYTES", "bytes a second it sends of an answer")
    # stdio noise
    stdout_garbage: tuple[Fault, ...] = _many(
        amount("any", optional(whole)),
        "[N]",
        "N lines of noise (default 5) around each real line, which ends in CRLF; a BOM before the first real one",
    )
    stdout_long_line: tuple[Fault, ...] = _many(
        amount("call", lambda text: text == "endless" or size(text)),
        "BYTES|endless",
        "a call is answered with one enormous line, or with one that never ends",
    )
    stderr_flood: tuple[Fault, ...] = _many(
        amount("call", size), "BYTES", "written to stderr per call, the second half without newlines"
    )
    # HTTP
    status: tuple[Fault, ...] = _many(status, "POINT=CODE[,retry-after=S]", "an HTTP status instead of an answer")
    cut: tuple[Fault, ...] = _many(
        of_kind("call", after_headers=nothing, mid_body=nothing, reset=nothing),
        "after-headers|mid-body|reset",
        "breaks the connection of a call after it was executed",
    )
    content_type: tuple[Fault, ...] = _many(amount("any", non_empty), "TYPE", "media type of answers")
    body: tuple[Fault, ...] = _many(amount("any", non_empty), "FILE", "this instead of an answer, as text/html")
    close_idle: float | None = _one(seconds, None, "S", "closes an idle connection after S seconds, without notice")
    sse: tuple[Fault, ...] = _many(
        of_kind("call", split_events=nothing, crlf=nothing, gzip=nothing, no_final=nothing, progress=whole),
        "split-events|crlf|gzip|progress:N|no-final",
        "event streams in unusual but legal pieces; N progress events; no response at the end",
    )
    progress_every: float = _one(seconds, 0.0, "S", "seconds before each progress event")
    # results
    result: tuple[Fault, ...] = _many(
        of_kind(
            "call",
            text=nothing,
            structured=nothing,
            iserror=lambda text: text in ("", "empty", "multi") or size(text),
            image=nothing,
            audio=nothing,
            multi=nothing,
            huge=size,
            emoji=optional(size),
            schema_mismatch=optional(choice("type", "missing")),
            raw=non_empty,
        ),
        "text|structured|iserror[:empty|multi|BYTES]|image|audio|multi|huge:BYTES|emoji[:BYTES]"
        "|schema-mismatch[:type|missing]|raw:FILE",
        "what a call returns",
    )
    error: tuple[Fault, ...] = _many(rpc_error, "CODE:MESSAGE[:DATA]", "a JSON-RPC error; DATA is JSON")
    reply: tuple[Fault, ...] = _many(
        of_kind(
            "call",
            malformed=nothing,
            deep=whole,
            not_rpc=nothing,
            late=seconds,
            dup=nothing,
            error_then_result=nothing,
            unasked=nothing,
        ),
        "malformed|deep:N|not-rpc|late:S|dup|error-then-result|unasked",
        "how the answer is wrong; a late one comes even after a cancel",
    )
    reply_id: tuple[Fault, ...] = _many(
        of_kind("call", string=nothing, null=nothing, zero=nothing), "string|null|zero", "the id in another form"
    )
    # asks
    ask: tuple[Fault, ...] = _many(
        amount("call", non_empty), "elicitation|sampling|roots|METHOD", "a request to the client during a call"
    )
    notify: tuple[Announcement, ...] = _many(
        announcement, "list_changed|log|ping:every=S|rate=N", "said again and again"
    )
    # recording, control, script
    log_calls: str | None = _one(non_empty, None, "FILE", "one JSON line per request, written before it is answered")
    echo_headers: bool = _one(flag, False, "", "whoami also returns header values")
    echo_env: bool = _one(flag, False, "", "whoami also returns environment values and argv")
    control: int | None = _one(whole, None, "PORT", "control port on 127.0.0.1; 0 chooses one and prints it")
    script: str | None = _one(
        non_empty, None, "FILE", 'steps {"on": point, "send"|"sleep"|"close"|"exit"} for the rest'
    )
    switches: str | None = _one(non_empty, None, "FILE", "more switches, one argument a line, if the file exists")
    seed: int = _one(whole, 0, "N", "where the order of noise and the sizes of pieces begin")


_FIELDS = {f.name: f for f in fields(Switches)}
FAULTS = tuple(
    name for name, f in _FIELDS.items() if f.metadata["many"] and name != "notify" and not name.endswith("_after")
)
"""The switches that are limited and counted request by request."""


def parse(arguments: Sequence[str]) -> Switches:
    """Read a command line.

    Raises:
        BadSwitch: an unknown switch, a missing or wrong value.
    """
    switches = Switches()
    words = list(arguments)
    while words:
        word = words.pop(0)
        name, has_value, value = word.partition("=")
        if not has_value and words and not words[0].startswith("--"):
            value = words.pop(0)
        switches = with_switch(switches, name, value, add=True)
        if name == "--switches" and switches.switches:
            words = _from_file(switches.switches) + words
    return switches


def with_switch(switches: Switches, name: str, value: str | None, *, add: bool = False) -> Switches:
    """The same switches with one of them changed; None takes it back to its default.

    Args:
        add: a switch that may be given several times keeps its earlier values.

    Raises:
        BadSwitch
    """
    key = name.removeprefix("--").replace("-", "_")
    if key not in _FIELDS or (add and not name.startswith("--")):
        raise BadSwitch(f"unknown switch {name!r}; see --help")
    found = _FIELDS[key]
    try:
        parsed: Any = found.default if value is None else found.metadata["parse"](value)
    except ValueError as error:
        raise BadSwitch(f"--{key.replace('_', '-')} {value!r}: expected {error}") from None
    if found.metadata["many"] and value is not None:
        parsed = (*(getattr(switches, key) if add else ()), parsed)
    return replace(switches, **{key: parsed})


def usage() -> str:
    lines = ["usage: python -m tests.faulty [switches]   (limits: :after=K,times=K,every=K,tool=NAME,point=POINT)"]
    for name, found in _FIELDS.items():
        lines.append(f"  --{name.replace('_', '-')} {found.metadata['form']}".rstrip())
        lines.append(f"        {found.metadata['help']}")
    return "\n".join(lines)


def _from_file(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return [line for line in file.read().splitlines() if line]
    except FileNotFoundError:
        return []
