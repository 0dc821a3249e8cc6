"""What a stdio server inherits: an allow-list of the gateway's environment, and where its command is found.

The gateway's own secrets (pepper, database URLs, tokens of other upstreams) live in its environment; none of them may
reach a child. So nothing is inherited that is not named here.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

INHERITED = frozenset(
    {
        # what any program needs to find itself, its user and its language
        "PATH", "HOME", "LANG", "LANGUAGE", "TMPDIR", "TERM", "USER", "LOGNAME", "SHELL", "TZ",
        # trust stores of the organisation
        "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
        # the way out
        "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
    }
)  # fmt: skip
INHERITED_PREFIXES = ("LC_", "XDG_", "UV_", "PIP_", "npm_config_", "NPM_CONFIG_")
"""Families: locale, base folders, and the package runners (``uvx``, ``npx``, ``pip``) that start most servers."""

_TELLING = re.compile(r"TOKEN|PASSWORD|PASSWD|SECRET|AUTH|KEY|CREDENTIAL", re.IGNORECASE)


class CommandNotFound(Exception):
    """The command or its working directory does not exist. The text is one sentence without a host path."""


def child_environment(declared: Mapping[str, str], own: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child.

    Args:
        declared: ``env`` of the configuration; wins over what is inherited.
        own: the gateway's environment; default ``os.environ``.

    Returns:
        the allow-listed part of ``own``, then ``declared``; ``PATH`` ends with the folder of the gateway's interpreter,
        so that the ``uvx`` and ``npx`` of its venv are found where the machine has none.
    """
    own = os.environ if own is None else own
    environment = {k: v for k, v in own.items() if k in INHERITED or k.startswith(INHERITED_PREFIXES)}
    environment.update(declared)
    folders = [folder for folder in (environment.get("PATH") or os.defpath).split(os.pathsep) if folder]
    tools = str(Path(sys.executable).parent)
    environment["PATH"] = os.pathsep.join(folders if tools in folders else [*folders, tools])
    return environment


def secrets_of(environment: Mapping[str, str], declared: Mapping[str, str], args: Sequence[str] = ()) -> list[str]:
    """The values that must never be shown.

    Everything declared; what was inherited under a telling name; arguments that follow a telling option
    (``--api-key X``, ``--token=X``).
    """
    secrets = [*declared.values(), *(v for k, v in environment.items() if k not in declared and _TELLING.search(k))]
    for option, following in zip(args, [*args[1:], ""], strict=False):
        name, equals, value = option.partition("=")
        if name.startswith("-") and _TELLING.search(name):
            secrets.append(value if equals else following)
    return secrets


def find_command(command: str, environment: Mapping[str, str], cwd: Path) -> str:
    """The absolute path of an executable.

    Args:
        command: a name to look up on the child's ``PATH``, or a path (relative to ``cwd``).

    Raises:
        CommandNotFound
    """
    if not cwd.is_dir():
        raise CommandNotFound("its working directory does not exist")
    if os.sep not in command:
        found = shutil.which(command, path=environment.get("PATH"))
        if found is None:
            raise CommandNotFound(f"command '{command}' was not found on PATH")
        return found
    path = cwd / Path(command).expanduser()
    if not path.is_file():
        raise CommandNotFound(f"command '{path.name}' does not exist")
    if not os.access(path, os.X_OK):
        raise CommandNotFound(f"command '{path.name}' is not executable")
    return str(path)
