"""Who may import whom: the table of the house, held for every module.

Rooms import only what their line names. Imports inside functions and under TYPE_CHECKING count like all others: a
dependency is a dependency.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gateway"
LEAF = "errors"

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "config": set(),
    "tenancy": {"config"},
    "catalog": {"config", "tenancy"},
    "upstreams": {"config", "catalog"},
    "metering": {"config"},
    "kernels": {"config", "tenancy"},
    "broker": {"config", "tenancy", "catalog", "upstreams", "metering"},
    "facade": {"config", "broker", "tenancy", "catalog", "kernels", "metering", "upstreams.base"},
    "edge": {"config", "facade", "tenancy", "metering"},
    "app": {"config", "tenancy", "catalog", "upstreams", "metering", "kernels", "broker", "facade", "edge"},
    "cli": {"config", "app", "tenancy", "catalog", "upstreams", "metering", "kernels", "facade"},
}
"""Beyond the table of the design: the facade reads ``upstreams.base`` for the result value and typed errors that the
broker returns (never a connection), and commands may use any room below ``app``, which is what they print."""


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Dotted names below ``gateway`` that a module imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return {name.removeprefix("gateway.") for name in found if name.startswith("gateway.")}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_what_the_table_allows(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        assert not imports(path)
        return
    allowed = ALLOWED[room] | {room, LEAF, "__version__"}
    wrong = {
        name
        for name in imports(path)
        if not any(name == one or name.startswith(one + ".") for one in allowed)
        # `from gateway.upstreams import base` names the package too
        and not any(one.startswith(name + ".") for one in allowed)
    }
    assert not wrong, f"{room} must not import {sorted(wrong)}"


def test_every_room_has_a_line_and_a_map() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms <= set(ALLOWED)
    for room in rooms:
        docstring = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8")))
        assert docstring, room
        assert len(docstring) > 200, f"{room}: the package docstring is its map"


def test_no_middleware_that_costs_five_requests() -> None:
    for path in modules():
        assert "BaseHTTPMiddleware" not in path.read_text(encoding="utf-8"), path


def test_help_loads_nothing_heavy() -> None:
    """``import mcp`` alone costs two CPU seconds; a command line that loads it for --help is not one."""
    probe = (
        "import sys; sys.argv = ['gateway', '--help']\n"
        "from gateway.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = ('mcp', 'pydantic', 'tiktoken', 'starlette', 'pydantic_monty', 'structlog')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip().endswith("[]"), done.stdout
