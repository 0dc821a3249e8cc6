"""``gateway.yaml`` → :class:`Loaded`, or all its mistakes at once.

text → :mod:`document <gateway.config.document>` → :mod:`variables <gateway.config.variables>` → model → checks. A value
that one step could not read is a hole for the next ones: what they say about it is left out, everything else is not.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gateway.config import variables
from gateway.config.checks import cross_check
from gateway.config.document import HOLE, START, Document, Mark, Surprising, mark_at, parse, plain_value
from gateway.config.messages import findings, value_at
from gateway.config.model import GatewayConfig
from gateway.config.problem import ConfigError, Finding, Loc, Problem

__all__ = ["MAX_BYTES", "ConfigError", "Loaded", "Problem", "load", "loads", "sqlite_path"]

MAX_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Loaded:
    """A config and where it came from.

    Attributes:
        config: the validated file.
        path: the file, as it was named.
        folder: its folder, absolute; relative paths in the config begin here. Links are not followed: a mounted
            ConfigMap's file is a link, and what lies beside the link is meant.
    """

    config: GatewayConfig
    path: Path
    folder: Path


def load(path: str | os.PathLike[str], env: Mapping[str, str] | None = None) -> Loaded:
    """Read, check and freeze a config file.

    Args:
        path: a regular file of at most :data:`MAX_BYTES`, UTF-8.
        env: the variables that are set; default: the environment of the process.

    Raises:
        ConfigError: all that is wrong with it; also when there is no such file.
    """
    path = Path(path)
    name = str(path)
    try:
        content = variables.read_regular_file(path, MAX_BYTES)
    except FileNotFoundError:
        raise _unreadable(name, "there is no such file; `gateway init` writes one") from None
    except OSError as error:
        raise _unreadable(name, f"it cannot be read: {error.strerror}") from None
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise _unreadable(name, "it is not UTF-8 text", _mark_of_byte(content, error.start)) from None
    return Loaded(loads(text, name, env), path, Path(os.path.abspath(path)).parent)


def loads(text: str, name: str, env: Mapping[str, str] | None = None) -> GatewayConfig:
    """Check and freeze the text of a config.

    Args:
        text: YAML.
        name: stands for the file in problems.
        env: the variables that are set; default: the environment of the process.

    Raises:
        ConfigError: all that is wrong with it.
    """
    document = parse(text, name)
    data, typeable = _insert_variables(document, os.environ if env is None else env)
    config = None
    if data is not HOLE:
        config, errors = _validate(data, typeable)
        for finding in (*errors, *cross_check(data, document.gaps)):
            if not _follows(finding, document):
                document.report(finding)
    document.raise_problems()
    assert config is not None
    return config


def sqlite_path(url: str, folder: Path) -> Path:
    """``sqlite:///gateway.db`` → that file in ``folder``; ``sqlite:////var/gateway.db`` → the absolute path.

    Raises:
        ValueError: it is no such URL.
    """
    scheme, path = url[: len("sqlite:///")], url[len("sqlite:///") :]
    if scheme != "sqlite:///" or not path:
        raise ValueError("must be sqlite:///FILE or sqlite:////ABSOLUTE/FILE")
    return folder / path


def _insert_variables(document: Document, env: Mapping[str, str]) -> tuple[Any, set[Loc]]:
    """The values with their variables inserted, and where one unquoted variable was all of the text."""
    typeable: set[Loc] = set()

    def walk(value: Any, loc: Loc) -> Any:
        if isinstance(value, dict):
            return {key: walk(item, (*loc, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item, (*loc, index)) for index, item in enumerate(value)]
        if not isinstance(value, str) or "${" not in value:
            return value
        text, complaints = variables.expand(value, env)
        for complaint in complaints:
            document.report(Finding(loc, complaint))
        if complaints:
            document.holes.add(loc)
            return HOLE
        if loc in document.unquoted and variables.is_single(value):
            typeable.add(loc)
        return text

    return walk(document.value, ()), typeable


_WANTS_NO_TEXT = {"int_type", "bool_type", "literal_error"}


def _validate(data: Any, typeable: set[Loc]) -> tuple[GatewayConfig | None, list[Finding]]:
    """Validate; where a number or a boolean is wanted and an unquoted variable stands, read it as one and try again.

    ``data`` is changed in place for that.
    """
    try:
        return _model(data), []
    except ValidationError as error:
        retyped = False
        for details in error.errors(include_url=False, include_input=False):
            loc = details["loc"]
            if details["type"] in _WANTS_NO_TEXT and loc in typeable:
                retyped |= _retype(value_at(data, loc[:-1]), loc[-1])
        if not retyped:
            return None, list(findings(error, data))
    try:
        return _model(data), []
    except ValidationError as error:
        return None, list(findings(error, data))


def _model(data: Any) -> GatewayConfig:
    return GatewayConfig.model_validate(data, by_alias=True, by_name=False)


def _retype(parent: Any, key: str | int) -> bool:
    try:
        value = plain_value(parent[key])
    except Surprising:
        return False
    if not isinstance(value, (int, float)):
        return False
    parent[key] = value
    return True


def _follows(finding: Finding, document: Document) -> bool:
    """Whether it only follows from something that was reported before: a value or a key that could not be read."""
    prefixes = (finding.loc[:length] for length in range(len(finding.loc) + 1))
    if any(prefix in document.holes for prefix in prefixes):
        return True
    is_missing = value_at(document.value, finding.loc) is None and finding.loc not in document.keys
    return is_missing and finding.loc[:-1] in document.gaps


def _unreadable(name: str, message: str, mark: Mark = START) -> ConfigError:
    return ConfigError((Problem(name, mark.line, mark.column, "", message),))


def _mark_of_byte(content: bytes, index: int) -> Mark:
    before = content[:index].decode()
    return mark_at(before, len(before))
