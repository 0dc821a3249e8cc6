"""``python -m tests.conformance [BAR …]``: run bars and print what came of them; exit status 1 when one is red."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence

from tests.conformance.bars import BARS, DEFAULT
from tests.conformance.suite import REVISIONS, install


async def main(names: Sequence[str]) -> int:
    unknown = [name for name in names if name not in BARS]
    if unknown:
        print(f"no bar {unknown[0]!r}; there are {', '.join(BARS)}", file=sys.stderr)
        return 2
    await install()
    rows: list[tuple[str, ...]] = [("bar", "set", "passed", "expected", "unexpected", "stale", "seconds", "what")]
    problems: list[str] = []
    for name in names or DEFAULT:
        for revision in REVISIONS:
            print(f"{name} {revision} …", file=sys.stderr, flush=True)
            began = time.monotonic()
            verdict = await BARS[name].run(revision)
            counts = (len(verdict.passed), len(verdict.expected), len(verdict.unexpected), len(verdict.stale))
            seconds = time.monotonic() - began
            rows.append((name, revision, *map(str, counts), f"{seconds:.0f}", BARS[name].what))
            problems += [f"{name} {revision}: {line}" for line in verdict.problems()]
    print("\nScenarios of the MCP conformance suite; expected failures are listed in tests/conformance/*.yml\n")
    for left, middle, *numbers, right in rows:
        print(f"{left:<14} {middle:<10}", *(f"{number:>10}" for number in numbers), f"  {right}")
    print("", *problems, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(sys.argv[1:])))
