"""The MCP servers of another client's config → an ``upstreams:`` block. Nothing is started, nothing is written.

Understands ``mcpServers`` (Claude Desktop, Claude Code, Cursor, Windsurf, Cline) and ``servers`` with ``inputs``
(VS Code, also below ``mcp`` in its settings). Every server either appears in the block or is named in a note, and so
is every key that has no meaning here. Literal secrets become ``${VAR}``; notes never hold a value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gateway.config import jsonc
from gateway.config.document import Surprising, plain_value
from gateway.config.literal_secrets import secret_name, secret_value
from gateway.config.loader import MAX_BYTES, loads
from gateway.config.model import UPSTREAM_NAME
from gateway.config.problem import ConfigError, Problem, path_text

_TYPES = {"stdio", "local", "http", "streamable-http", "streamableHttp", "streamable_http", "remote", "sse"}
_URL_KEYS = ("url", "serverUrl", "httpUrl")
_EDITOR_VARIABLES = {"workspaceFolder", "workspaceFolderBasename", "userHome", "pathSeparator", "cwd"}


@dataclass(frozen=True, slots=True)
class Imported:
    """What came out of another client's config.

    Attributes:
        yaml: an ``upstreams:`` block, which loads once the variables are set.
        variables: what must be set, in the order of first use.
        notes: what a person should know: renamed, left out, not understood. No values.
    """

    yaml: str
    variables: tuple[str, ...]
    notes: tuple[str, ...]


def import_clients(text: str, name: str = "import") -> Imported:
    """Read a client's config, with or without comments and trailing commas.

    Args:
        text: the JSON.
        name: stands for the file in problems.

    Raises:
        ConfigError: it is no JSON, or holds no servers at all.
    """
    if len(text) > MAX_BYTES:
        raise _no_import(name, f"it is larger than {MAX_BYTES // 1024} KiB")
    try:
        root, twice = jsonc.parse(text)
    except jsonc.JsoncError as error:
        raise ConfigError((Problem(name, error.mark.line, error.mark.column, "", str(error)),)) from None
    run = _Import()
    run.notes.extend(f"{_shown(key)} is given twice in one object; the last one counts" for key in twice)
    groups = list(_groups(root, run))
    if not groups:
        raise _no_import(name, "there is neither mcpServers nor servers in it")
    for servers in groups:
        for server, entry in servers.items():
            run.add(server, entry)
    return Imported(_block(run.upstreams), tuple(run.variables), tuple(dict.fromkeys(run.notes)))


def _no_import(name: str, message: str) -> ConfigError:
    return ConfigError((Problem(name, 1, 1, "", message),))


def _groups(root: Any, run: _Import) -> Iterator[dict[str, Any]]:
    """The maps of servers; what else lies beside them is noted."""
    if not isinstance(root, dict):
        return
    unknown = []
    for key, value in root.items():
        if key in ("mcpServers", "servers") and isinstance(value, dict):
            yield value
        elif key == "mcp" and isinstance(value, dict):
            yield from _groups(value, run)
        elif key == "inputs" and isinstance(value, list):
            run.note_inputs(value)
        elif key != "$schema":
            unknown.append(_shown(key))
    if unknown:
        more = f" and {len(unknown) - 10} more" if len(unknown) > 10 else ""
        run.notes.append(f"not imported: {', '.join(unknown[:10])}{more}")


class _LeftOut(Exception):
    """This server cannot be imported; the text says why."""


@dataclass(slots=True)
class _Import:
    """One import: what was collected so far."""

    upstreams: dict[str, dict[str, Any]] = field(default_factory=dict)
    variables: dict[str, str | None] = field(default_factory=dict)  # name → the literal it stands for, if any
    notes: list[str] = field(default_factory=list)

    def add(self, server: str, entry: Any) -> None:
        variables, notes = dict(self.variables), list(self.notes)
        name = self._name(server)
        try:
            upstream = self._upstream(name, server, entry)
            _must_load(name, upstream)
        except _LeftOut as reason:
            self.variables, self.notes = variables, notes
            self.notes.append(f"{_shown(server)}: left out: {reason}")
            return
        if name != server:
            self.notes.append(f"{_shown(server)}: named {name} here, since its name is not usable or taken")
        self.upstreams[name] = upstream

    def note_inputs(self, inputs: list[Any]) -> None:
        for item in inputs:
            identifier = item.get("id") if isinstance(item, dict) else None
            if isinstance(identifier, str):
                self.notes.append(f"input {_shown(identifier)}: set variable {_variable(identifier)} instead")

    def _name(self, server: str) -> str:
        """A legal name that is still free, also as an identifier."""
        name = server
        if not UPSTREAM_NAME.fullmatch(name):
            name = re.sub(r"_{2,}", "_", re.sub(r"[^A-Za-z0-9_-]+", "-", name))
            name = name.strip("_-")[:56].rstrip("_") or "server"
        taken = {other.replace("-", "_") for other in self.upstreams}
        free, number = name, 2
        while free.replace("-", "_") in taken:
            free, number = f"{name[:56].rstrip('_')}-{number}", number + 1
        return free

    def _upstream(self, name: str, server: str, entry: Any) -> dict[str, Any]:
        if not isinstance(entry, dict):
            raise _LeftOut("it is not an object")
        entry = dict(entry)
        urls = [entry.pop(key) for key in _URL_KEYS if key in entry]
        command, kind = entry.pop("command", None), entry.pop("type", entry.pop("transport", None))
        if kind is not None and kind not in _TYPES:
            raise _LeftOut("its type is not known here")
        if command is not None and urls:
            raise _LeftOut("it has both a command and a URL")
        if command is None and not urls:
            raise _LeftOut("it has neither a command nor a URL")
        upstream: dict[str, Any] = {}
        if command is not None:
            upstream["command"] = self._text(server, "command", command)
            if args := self._arguments(name, server, entry.pop("args", None)):
                upstream["args"] = args
            if env := self._named(name, server, "env", entry.pop("env", None)):
                upstream["env"] = env
            if (cwd := entry.pop("cwd", None)) is not None:
                upstream["cwd"] = self._text(server, "cwd", cwd)
        else:
            upstream["url"] = self._url(name, server, urls[0])
            if headers := self._named(name, server, "headers", entry.pop("headers", None)):
                upstream["headers"] = headers
        if entry.pop("disabled", False) is True or entry.pop("enabled", True) is False:
            upstream["disabled"] = True
        if kind == "sse":
            upstream["type"] = "sse"
        if entry:
            self.notes.append(f"{_shown(server)}: not imported: {', '.join(map(_shown, entry))}")
        return upstream

    def _arguments(self, name: str, server: str, args: Any) -> list[str]:
        if args is None:
            return []
        if not isinstance(args, list):
            raise _LeftOut("args is not a list")
        result: list[str] = []
        flag = ""
        for item in args:
            argument = self._text(server, "args", item)
            option, equals, value = argument.partition("=")
            if equals and option.startswith("-") and (secret_name(option) or secret_value(value)):
                argument = f"{option}={self._secret(name, option, value)}"
            elif secret_value(argument) or (secret_name(flag) and not argument.startswith("-")):
                argument = self._secret(name, flag or "secret", argument)
            elif equals and re.fullmatch(r"[A-Za-z_]\w*", option) and (secret_name(option) or secret_value(value)):
                argument = f"{option}={self._secret(name, option, value)}"  # docker run -e TOKEN=…
            result.append(argument)
            flag = argument if argument.startswith("--") and not equals else ""
        return result

    def _named(self, name: str, server: str, what: str, values: Any) -> dict[str, str]:
        """``env`` or ``headers``."""
        if values is None:
            return {}
        if not isinstance(values, dict):
            raise _LeftOut(f"{what} is not an object")
        result: dict[str, str] = {}
        for key, item in values.items():
            if item is None:
                self.notes.append(f"{_shown(server)}: not imported: {what} {_shown(key)}, which has no value")
                continue
            if "${" in key or _clean(key) != key:
                raise _LeftOut(f"a name in {what} is not usable")
            value = self._text(server, what, item)
            if secret_name(key) or secret_value(value):
                value = self._secret(name, key, value, shared=what == "env")
            result[key] = value
        return result

    def _url(self, name: str, server: str, url: Any) -> str:
        text = self._text(server, "url", url)

        def replace(found: re.Match[str]) -> str:
            key, value = found["key"], found["value"]
            if not (secret_name(key) or secret_value(value)):
                return found[0]
            return f"{found['before']}{key}={self._secret(name, key, value)}"

        text = re.sub(r"(?P<before>[?&])(?P<key>[^=&#]+)=(?P<value>[^&#]*)", replace, text)
        if found := re.match(r"(https?://[^/?#@:\s]*:)([^/?#@\s]+)(@.*)", text, re.DOTALL):
            text = found[1] + self._secret(name, "password", found[2]) + found[3]
        return text

    def _secret(self, name: str, key: str, value: str, *, shared: bool = False) -> str:
        """A reference in place of a literal secret; a scheme such as ``Bearer`` stays. References stay as they are."""
        scheme, secret = "", value
        if found := re.match(r"((?:Bearer|Basic|Token|ApiKey)\s+)(.*)", value, re.IGNORECASE | re.DOTALL):
            scheme, secret = found[1], found[2]
        if not secret or re.search(r"(?<!\$)\$\{", secret):
            return value
        literal = secret.replace("$${", "${")
        wanted = _variable(key) if shared else _variable(f"{name}_{key}")
        for variable in (wanted, _variable(f"{name}_{key}"), *(f"{wanted}_{number}" for number in range(2, 1000))):
            if variable not in self.variables or self.variables[variable] == literal:
                self.variables[variable] = literal
                self.notes.append(f"{_shown(name)}: the value of {_shown(key)} looks secret: set variable {variable}")
                return f"{scheme}${{{variable}}}"
        raise _LeftOut("it has too many secrets")

    def _text(self, server: str, what: str, value: Any) -> str:
        """A text with its references in our spelling, and every other ``${`` made literal."""
        if isinstance(value, bool):
            value = "true" if value else "false"
        elif isinstance(value, (int, float)):
            value = json.dumps(value)
        if not isinstance(value, str):
            raise _LeftOut(f"{what} holds something that is no text")
        if _clean(value) != value:
            raise _LeftOut(f"{what} holds characters that are no text")

        def reference(found: re.Match[str]) -> str:
            kind, identifier, default = found["kind"], found["name"] or found["plain"], found["default"]
            if kind == "input:" or (kind is None and default is None and identifier in _EDITOR_VARIABLES):
                if kind is None:
                    self.notes.append(f"{_shown(server)}: {identifier} is filled in by the editor: set a variable")
                identifier = _variable(identifier)
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", identifier):
                identifier = _variable(identifier)
            if default is None:
                self.variables.setdefault(identifier, None)
            return f"${{{identifier}{default or ''}}}"

        pieces, end = [], 0
        for found in _REFERENCE.finditer(value):
            pieces += [value[end : found.start()].replace("${", "$${"), reference(found)]
            end = found.end()
        return "".join(pieces) + value[end:].replace("${", "$${")


_REFERENCE = re.compile(
    r"(?<!\$)\$\{(?:(?P<kind>input:|env:)(?P<name>[A-Za-z0-9_.-]+)|(?P<plain>[A-Za-z_][A-Za-z0-9_]*))"
    r"(?P<default>:-[^{}]*)?\}"
)


def _must_load(name: str, upstream: dict[str, Any]) -> None:
    """The block is read back by our own loader, with stand-ins for the variables."""
    text = "version: 1\ntenants: {}\n" + _block({name: upstream})
    for stand_in in ("1", "https://stand-in.example"):
        try:
            loads(text, name, _Always(stand_in))
        except ConfigError as error:
            reason = error.problems[0]
        else:
            return
    raise _LeftOut(f"{reason.path.removeprefix(path_text(('upstreams', name))).lstrip('.')} {reason.message}")


class _Always(dict[str, str]):
    """An environment in which every variable is set."""

    def __init__(self, value: str) -> None:
        super().__init__()
        self._value = value

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        return self._value


def _variable(text: str) -> str:
    """``my-db.apiKey`` → ``MY_DB_API_KEY``."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text)
    name = re.sub(r"[^A-Za-z0-9]+", "_", words).strip("_").upper() or "VALUE"
    return name if not name[0].isdigit() else f"V_{name}"


def _clean(text: str) -> str:
    return re.sub("[\0\ud800-\udfff]", "\ufffd", text)


def _shown(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) else json.dumps(name[:64])


# ---------------------------------------------------------------- printing


def _block(upstreams: dict[str, dict[str, Any]]) -> str:
    """YAML in block style, as a person would write it; lists and maps of texts on one line."""
    if not upstreams:
        return "upstreams: {}\n"
    lines = ["upstreams:"]
    for name, upstream in upstreams.items():
        lines.append(f"  {_scalar(name)}:")
        for key, value in upstream.items():
            if isinstance(value, dict):
                lines.append(f"    {key}:")
                lines += [f"      {_scalar(inner)}: {_scalar(text)}" for inner, text in value.items()]
            elif isinstance(value, list):
                lines.append(f"    {key}: [{', '.join(map(_scalar, value))}]")
            else:
                lines.append(f"    {key}: {_scalar(value)}")
    return "\n".join(lines) + "\n"


def _scalar(value: str | bool) -> str:
    """A text, quoted unless it is harmless and means itself to every YAML reader."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if re.fullmatch(r"-{0,2}[A-Za-z0-9_./][A-Za-z0-9_./@-]*", value):
        try:
            if plain_value(value) == value:
                return value
        except Surprising:
            pass
    quoted = json.dumps(value, ensure_ascii=False)
    return re.sub(r"[^\x20-\x7e\xa0-\u2027\u2070-\ud7ff\ue000-\ufdcf\ufdf0-\ufefe\uff00-\ufffd]", _escape, quoted)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"
