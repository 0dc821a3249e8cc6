"""What to write instead: models repair a script from one line in its error, not from instructions beforehand.

Each row: a pattern of the engine's message, and the replacement. The first row that matches wins.
"""

from __future__ import annotations

import re

_GATHER = "run calls together with `await asyncio.gather(...)`; the gateway limits how many run at once"
_NO_NETWORK = "there is no network here: use the functions that docs_search lists"
_NO_SYSTEM = "there is no operating system here: use the functions that docs_search lists"
_LAMBDA = "use a lambda, such as key=lambda s: s.lower()"

_TABLE = (
    # syntax and built-ins
    ("class inheritance", 'use functions, dicts or @dataclass; raise ValueError("code: text") as your own exception'),
    ("method decorators", "make it a plain function"),
    ("yield expressions", "build a list and return it"),
    ("'del' statement", "use d.pop(key), or build a new dict or list"),
    ("async context managers", _GATHER),
    ("async for loops", "await the call, then loop over its result"),
    ("too deeply nested", "split the expression into steps"),
    ("built-in input", "there is nobody to ask: write the value into the script"),
    # asyncio
    ("create_task|wait_for|as_completed|'asyncio' has no attribute|from 'asyncio'", _GATHER),
    (
        r"gather\(\) does not yet support keyword arguments",
        "catch inside: `async def safe(c):` with `try: return await c` and `except Exception as e: return str(e)`; "
        "gather the safe(...) calls",
    ),
    ("can't be awaited", "that value is already a result: drop the `await`"),
    ("'coroutine' object", "write `await` before the call"),
    # modules
    (r"'(urllib|requests|httpx2?|aiohttp|socket|http|ssl)\b", _NO_NETWORK),
    (r"'(subprocess|shutil|multiprocessing|threading|ctypes|signal|tempfile|glob)'|module 'os'", _NO_SYSTEM),
    ("No module named '(csv|io|string|textwrap)'", "split by hand: text.splitlines(), line.split(',')"),
    ("No module named 'statistics'", "sum(x) / len(x); sorted(x)[len(x) // 2]"),
    ("No module named 'heapq'", "sorted(items, key=...)[:n]"),
    ("No module named 'operator'", 'use a lambda, such as key=lambda r: r["k"]'),
    (
        "No module named|cannot import name",
        "use built-ins, json, re, datetime, math, collections, itertools, functools",
    ),
    ("utcnow", "datetime.now(timezone.utc)"),
    ("type object '[^']+' has no attribute", _LAMBDA),
    (r"'os\.\w+' is not supported", _NO_SYSTEM),
    # names
    ("forget to import", "import it first: executions share no state"),
    (r"name '\w+__\w+' is not defined", "there is no function of that name: look it up with docs_search"),
    ("name '[^']+' is not defined", "define it in this script: executions share no state"),
)
_HINTS = tuple((re.compile(pattern), hint) for pattern, hint in _TABLE)


def hint_for(message: str) -> str | None:
    """The hint for an engine's message (``ValueError: text``), or None."""
    return next((hint for pattern, hint in _HINTS if pattern.search(message)), None)
