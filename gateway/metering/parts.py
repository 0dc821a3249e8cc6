"""The two arms of the comparison: what was really sent, and what direct MCP would have put into a model's context.

| event | really sent (``code``) | counterfactual (``direct``) | label |
|---|---|---|---|
| tools are listed | our definitions and instructions | definitions of all tools the tenant may see | tools_list |
| docs_search | its arguments, the text sent | nothing | docs |
| execute_code, request | the script | name and arguments of each inner call | call |
| execute_code, answer | the text sent | text of each inner result, as its upstream sent it | result |
| direct mode | the same text in both arms | | |

Both arms grow at the same event and from the same tenant's view, never from constants. Failed, refused and retried
calls count like others: a direct client would have paid for them too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Part(StrEnum):
    """Where a text belongs. The values are the fields of :class:`Tokens`."""

    CODE_LIST = "code_list"
    CODE_DOCS_QUERY = "code_docs_query"
    CODE_DOCS = "code_docs"
    CODE_CALL = "code_call"
    CODE_RESULT = "code_result"
    DIRECT_LIST = "direct_list"
    DIRECT_CALL = "direct_call"
    DIRECT_RESULT = "direct_result"

    @property
    def mode(self) -> str:
        """``code`` or ``direct``: the metric's label."""
        return "direct" if self.value.startswith("direct") else "code"

    @property
    def label(self) -> str:
        """``tools_list``, ``docs``, ``call`` or ``result``: the metric's label."""
        return _LABELS[self]


FIELDS = tuple(part.value for part in Part)
"""The fields of :class:`Tokens` that hold the figures of the parts."""

_LABELS = {
    Part.CODE_LIST: "tools_list",
    Part.CODE_DOCS_QUERY: "docs",
    Part.CODE_DOCS: "docs",
    Part.CODE_CALL: "call",
    Part.CODE_RESULT: "result",
    Part.DIRECT_LIST: "tools_list",
    Part.DIRECT_CALL: "call",
    Part.DIRECT_RESULT: "result",
}


@dataclass(frozen=True, slots=True)
class Tokens:
    """The final figures of one request, the same in ``_meta``, metrics and ledger. One field for each part.

    Attributes:
        hidden: arguments and results of inner calls, which stayed in the sandbox; 0 in direct mode.
        estimated: at least one figure was not really counted.
        encoding: the tokenizer.
    """

    code_list: int = 0
    code_docs_query: int = 0
    code_docs: int = 0
    code_call: int = 0
    code_result: int = 0
    direct_list: int = 0
    direct_call: int = 0
    direct_result: int = 0
    hidden: int = 0
    estimated: bool = False
    encoding: str = "o200k_base"

    def __getitem__(self, part: Part) -> int:
        figure: int = getattr(self, part.value)
        return figure

    @property
    def input(self) -> int:
        """What the model wrote: the script or the query (``in`` of ``_meta``)."""
        return self.code_docs_query + self.code_call

    @property
    def output(self) -> int:
        """What the model reads (``out`` of ``_meta``)."""
        return self.code_list + self.code_docs + self.code_result

    @property
    def code(self) -> int:
        """Everything really sent."""
        return self.input + self.output

    @property
    def direct(self) -> int:
        """Everything direct MCP would have sent (``directEquivalent`` of ``_meta``)."""
        return self.direct_list + self.direct_call + self.direct_result

    @property
    def saved(self) -> int:
        """direct − code. Negative when code mode cost more; never clamped."""
        return self.direct - self.code
