"""Entry: ``python -m tests.faulty`` from the repository, or ``python /path/to/tests/faulty`` from anywhere."""

import os
import sys

if not __package__:  # started by path: this folder is on sys.path, the repository is not
    _here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _here]
    sys.path.insert(0, os.path.dirname(os.path.dirname(_here)))

# Tests start this program hundreds of times; asyncio does without ssl, and importing it costs a tenth of the start.
sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]

from tests.faulty.program import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
