"""Usage summaries as plain rows: the same columns for the command line, CSV and the API."""

from __future__ import annotations

from gateway.metering.usage import UsageSummary

Row = dict[str, str | int | float | None]


def as_row(summary: UsageSummary) -> Row:
    """One summary; tokens are whole numbers, ``estimatedShare`` is 0 to 1, ``saved`` may be negative."""
    row: Row = {"tenant": summary.tenant}
    if summary.day is not None:
        row["day"] = summary.day
    return row | {
        "requests": summary.requests,
        "errors": summary.errors,
        "toolCalls": summary.tool_calls,
        "tokensCode": summary.tokens_code,
        "tokensDirect": summary.tokens_direct,
        "saved": summary.saved,
        "hidden": summary.hidden,
        "estimatedShare": round(summary.estimated_share, 4),
    }
