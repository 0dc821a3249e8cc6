"""``${VAR}``, ``${VAR:-default}`` and ``${file:/path}`` in a text. The rules are in the package's docstring.

What comes in is inserted once, as it is: it is not searched for further variables and never read as YAML.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping

MAX_FILE_BYTES = 1024 * 1024

_TOKEN = re.compile(r"\$\$\{|\$\{(?P<body>[^{}]*)(?P<end>[{}]?)")
_SINGLE = re.compile(r"\$\{[^{}]*\}")
_BODY = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-.*)?|file:(?P<file>.*)", re.DOTALL)
_FORMS = "write ${NAME}, ${NAME:-default} or ${file:/absolute/path}; $${ is a literal ${"


def expand(text: str, env: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Insert what the variables of a text stand for.

    Args:
        text: as it is in the file.
        env: the variables that are set.

    Returns:
        the new text, and what is wrong with its variables: sentences that hold names and paths, never values. The
        text is of use only when nothing is wrong.
    """
    complaints: list[str] = []

    def insert(found: re.Match[str]) -> str:
        if found["body"] is None:
            return "${"
        try:
            return _resolve(found["body"], found["end"], env)
        except ValueError as error:
            complaints.append(str(error))
            return ""

    return _TOKEN.sub(insert, text), tuple(dict.fromkeys(complaints))


def is_single(text: str) -> bool:
    """Whether a text is one variable and nothing else."""
    return _SINGLE.fullmatch(text) is not None


def _resolve(body: str, end: str, env: Mapping[str, str]) -> str:
    if end == "{":
        raise ValueError(f"a variable inside of a variable is not supported: {_FORMS}")
    if not end:
        raise ValueError(f"a ${{ is not closed: {_FORMS}")
    if not (found := _BODY.fullmatch(body)):
        raise ValueError(f"a ${{…}} is malformed: {_FORMS}")
    if (path := found["file"]) is not None:
        return _read(path)
    name = found["name"]
    if name not in env:
        if found["default"] is None:
            raise ValueError(f"variable {name} is not set; ${{{name}:-default}} would give it a default")
        return found["default"].removeprefix(":-")
    if any("\ud800" <= character <= "\udfff" for character in env[name]):
        raise ValueError(f"variable {name} is not UTF-8 text")
    return env[name]


def _read(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError("${file:…} needs an absolute path")
    try:
        content = read_regular_file(path, MAX_FILE_BYTES)
        text = content.decode()
    except UnicodeDecodeError:
        raise ValueError(f"file {path} is not UTF-8 text") from None
    except OSError as error:
        raise ValueError(f"file {path} cannot be read: {error.strerror}") from None
    if "\0" in text:
        raise ValueError(f"file {path} holds a NUL character")
    return re.sub(r"\r?\n\Z", "", text)


def read_regular_file(path: str | os.PathLike[str], limit: int) -> bytes:
    """The content of a regular file. A pipe or a device, which could block for ever, is refused.

    Raises:
        OSError: with a ``strerror`` for people: it cannot be opened, is no regular file, or is larger than ``limit``.
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError:
        raise OSError(0, "its name holds a NUL character") from None
    try:
        mode = os.fstat(number).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(0, "it is a folder" if stat.S_ISDIR(mode) else "it is no regular file")
        with open(number, "rb", closefd=False) as file:
            content = file.read(limit + 1)
    finally:
        os.close(number)
    if len(content) > limit:
        raise OSError(0, f"it is larger than {limit // 1024} KiB")
    return content
