"""A tool as the signature that a Python script would use, in three lengths.

Names are printed exactly as a script calls them. Tools take keyword-only parameters; a tool with a parameter that no
keyword argument can have (``from``, ``content-type``) takes one positional dict instead. Texts of the upstream stand
behind comment marks only, literals are written by :func:`repr`, so that no description and no schema can leave its
place. Every stub parses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateway.catalog.lru import Lru
from gateway.catalog.pytypes import PythonTypes, default_text, is_parameter, note, type_prefix
from gateway.catalog.schema import Node, TypeTree, camel, read
from gateway.catalog.text import first_sentence, one_line
from gateway.catalog.tool import Tool

Form = Literal["line", "brief", "full"]
"""``line``: call and first sentence. ``brief``: signature, types, first sentence. ``full``: all that can be said."""

LOSSY = "[more rules in its schema]"
SHORTENED = "[types shortened]"
NO_RESULT_TYPE = "[result type left out]"

MAX_DESCRIPTION_CHARS = 16_000
MAX_NOTE_CHARS = 1_000
_LINE_PARAMETERS = 12

_rendered: Lru[tuple[object, ...], str] = Lru(8_192)


def python_stub(tool: Tool, form: Form = "brief", result_type: bool = True, shallow: bool = False) -> str:
    """``async def`` of a tool, preceded by the TypedDicts that it needs and its description as a comment.

    The module it is put in must begin with :data:`gateway.catalog.pytypes.PRELUDE`. For an answer with a budget the
    text can be shortened step by step: ``result_type=False``, then ``shallow=True``, then ``form="line"``; the first
    two say so with a mark.

    Args:
        form: how much to say.
        result_type: False: the result is ``Any``.
        shallow: True: objects inside objects are ``dict[str, Any]`` and long choices lose their values.
    """
    key = (tool.digest, tool.identifier, tool.name, tool.title, tool.description, form, result_type, shallow)
    return _rendered.get(key, lambda: _line(tool) if form == "line" else _stub(tool, form, result_type, shallow))


@dataclass(frozen=True, slots=True)
class _Arguments:
    """The parameters of a tool: an object's properties, or one dict of type ``node`` when ``positional``."""

    tree: TypeTree
    node: Node
    positional: bool


def _arguments(tool: Tool) -> _Arguments:
    tree = read(tool.input_schema, "Args")
    node = tree.resolved(tree.root)
    if node.kind == "union":  # {"type": ["object", "null"]}: arguments are always an object
        members = [member for member in node.items if member.kind in ("object", "map", "reference", "both")]
        node = tree.resolved(members[0]) if len(members) == 1 else Node("union", items=tuple(members))
    if node.kind == "both":  # own parameters, and alternatives that only the schema can say
        own = [member for member in map(tree.resolved, node.items) if member.kind == "object"]
        node = (
            Node("object", properties=own[0].properties, rest=Node("any")) if own else Node("map", items=(Node("any"),))
        )
    if node.kind not in ("object", "map", "union") or (node.kind == "union" and not node.items):
        node = Node("map", items=(Node("any"),))
    keywords = all(is_parameter(found.name) for found in node.properties)
    return _Arguments(tree, node, positional=node.kind == "union" or not keywords)


def _stub(tool: Tool, form: Form, result_type: bool, shallow: bool) -> str:
    full = form == "full"
    arguments = _arguments(tool)
    tree, node = arguments.tree, arguments.node
    types = PythonTypes(type_prefix(tool.identifier), MAX_NOTE_CHARS if full else 0, shallow)
    rows: list[tuple[str, str]] = []
    if arguments.positional:
        optional = node.kind == "object" and not any(found.required for found in node.properties)
        rows.append((f"args: {types.write(node, 'Args', tree, top=True)}{' = ...' if optional else ''}, /", ""))
    elif node.kind == "map":
        rows.append((f"**arguments: {types.write(node.items[0], 'Argument', tree)}", ""))
    else:
        for found in node.properties:
            written = types.write(found.type, camel(found.name), tree)
            default = None if found.required else default_text(found)
            row = f"{found.name}: {written}" + ("" if found.required else f" = {default or '...'}")
            rows.append((row, note(found, MAX_NOTE_CHARS if full else 0, default=default is None)))
        if node.rest is not None:
            rows.append(("**more: Any", ""))

    lossy = tree.lossy
    returns = "Any"
    if tool.output_schema and result_type:
        results = read(tool.output_schema, "Result", ("properties", "result") if tool.wraps_result else ())
        quiet = PythonTypes(type_prefix(tool.identifier), 0, shallow)
        quiet.declarations = types.declarations
        returns = quiet.write(results.root, "Result", results, top=True)
        lossy, types.shortened = lossy or results.lossy or quiet.lossy, types.shortened or quiet.shortened

    marks = [] if tool.identifier.endswith("__" + tool.shown_name) else [f"[tool {one_line(tool.shown_name, 100)}]"]
    marks += [LOSSY] * (lossy or types.lossy) + [SHORTENED] * types.shortened
    marks += [NO_RESULT_TYPE] * bool(tool.output_schema and not result_type)
    told = one_line(tool.description, MAX_DESCRIPTION_CHARS) if full else first_sentence(tool.description)
    head = " ".join(part for part in (told or one_line(tool.title, 160), *marks) if part)
    return "\n".join(
        [
            *types.declarations.values(),
            *([f"# {head}"] if head else []),
            f"async def {tool.identifier}({_parameters(rows)}) -> {returns}: ...",
        ]
    )


def _parameters(rows: list[tuple[str, str]]) -> str:
    star = ["*"] if rows and not rows[0][0].startswith("**") and not rows[0][0].endswith("/") else []
    if not any(comment for _, comment in rows):
        return ", ".join([*star, *(row for row, _ in rows)])
    lines = [f"{row},{'  # ' + comment if comment else ''}" for row, comment in rows]
    lines = [line.removesuffix(",") if line.startswith("**") else line for line in lines]
    return "\n" + "".join(f"    {line}\n" for line in [f"{s}," for s in star] + lines)


def _line(tool: Tool) -> str:
    """The call with its required parameters, then the first sentence: ``git__log(repo=..., **...)  # Shows it.``"""
    arguments = _arguments(tool)
    required = [found.name for found in arguments.node.properties if found.required]
    more = (
        len(required) < len(arguments.node.properties)
        or arguments.node.kind != "object"
        or arguments.node.rest is not None
    )
    more, required = more or len(required) > _LINE_PARAMETERS, required[:_LINE_PARAMETERS]
    if arguments.positional:
        inside = "{" + ", ".join(f"{name!r}: ..." for name in required) + "}" if required else "{...}"
    else:
        inside = ", ".join([f"{name}=..." for name in required] + ["**..."] * more)
    told = first_sentence(tool.description) or one_line(tool.title, 160)
    return f"{tool.identifier}({inside})" + (f"  # {told}" if told else "")
