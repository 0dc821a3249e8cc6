"""What a Python script sees of environment and files: what its manifest allows, and nothing else.

Environment variables are answered from the manifest. Folders are mounts of the engine, which opens them once and
resolves every path inside them by itself (no ``..``, no link to the outside, no device or pipe). A script names a
folder as the manifest does: ``allowedReadPaths: [/srv/docs]`` is ``/srv/docs``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic_monty import NOT_HANDLED, MountDir

from gateway.config.model import Manifest
from gateway.errors import ErrorClass, GatewayError

WRITE_BYTES_LIMIT = 16 * 1024 * 1024
"""What one execution may write below one allowed path, bytes."""

READ_BYTES_LIMIT = 16 * 1024 * 1024
"""What one file operation may hold in the gateway's memory, bytes: the gateway reads and writes for the worker."""


def check_manifest(manifest: Manifest) -> list[str]:
    """What this engine could not enforce or provide, one sentence each; empty when the manifest is fine."""
    problems = []
    if manifest.allowed_hosts:
        problems.append("allowedHosts: the monty engine gives scripts no network; remove the hosts")
    for field, path in _fields(manifest):
        if not Path(path).exists():
            problems.append(f"{field}: {path} does not exist")
        elif not Path(path).is_dir():
            problems.append(f"{field}: {path} is not a folder")
        elif ".." in PurePosixPath(path).parts:
            problems.append(f"{field}: {path} must not contain '..'")
    for outer, inner in _overlaps(manifest):
        problems.append(f"allowed paths must not lie inside each other: {inner} is inside {outer}")
    return problems


@contextmanager
def mounts_of(manifest: Manifest) -> Iterator[list[MountDir]]:
    """The manifest's folders, opened for one execution. A path in both lists is writable.

    Raises:
        GatewayError: CAPABILITY_DENIED, an allowed path cannot be opened.
    """
    writable = frozenset(manifest.allowed_write_paths)
    with ExitStack() as opened:
        mounts = []
        for path in dict.fromkeys((*manifest.allowed_read_paths, *manifest.allowed_write_paths)):
            try:
                mount = MountDir(
                    host_path=path,
                    virtual_path=str(PurePosixPath(path)),
                    mode="read-write" if path in writable else "read-only",
                    write_bytes_limit=WRITE_BYTES_LIMIT,
                    memory_usage_limit=READ_BYTES_LIMIT,
                )
            except (OSError, ValueError, TypeError) as error:
                raise GatewayError(
                    ErrorClass.CAPABILITY_DENIED,
                    f"the allowed path {path} cannot be opened",
                    hint="ask the operator to check the manifest",
                ) from error
            mounts.append(opened.enter_context(mount))
        yield mounts


class Environment:
    """Answers the engine's questions about environment variables; leaves all others to its refusals."""

    def __init__(self, variables: dict[str, str]) -> None:
        self._variables = variables

    def __call__(self, *, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], **_: Any) -> Any:
        if name == "os.environ":
            return dict(self._variables)
        if name == "os.getenv":
            return self._variables.get(*args, **kwargs)
        return NOT_HANDLED


def _fields(manifest: Manifest) -> Iterator[tuple[str, str]]:
    for path in manifest.allowed_read_paths:
        yield "allowedReadPaths", path
    for path in manifest.allowed_write_paths:
        yield "allowedWritePaths", path


def _overlaps(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Pairs of different allowed paths of which one contains the other, links resolved."""
    paths = dict.fromkeys((*manifest.allowed_read_paths, *manifest.allowed_write_paths))
    resolved = sorted((Path(path).resolve(), path) for path in paths)
    for index, (outer, outer_path) in enumerate(resolved):
        for inner, inner_path in resolved[index + 1 :]:
            if inner.is_relative_to(outer):
                yield outer_path, inner_path
