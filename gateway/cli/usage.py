"""``gateway usage``: what was used, and what direct MCP would have cost, from the ledger."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated

import typer

from gateway.cli.terminal import DEFAULT_CONFIG, CommandFailed, ConfigOption, load_config, out, parse_duration_option

HEADINGS = {
    "toolCalls": "calls",
    "tokensCode": "tokens: code",
    "tokensDirect": "direct",
    "estimatedShare": "est.",
}
"""Shorter than the column names of JSON and CSV, so that a table fits into 80 characters."""


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class By(StrEnum):
    TENANT = "tenant"
    DAY = "day"


def usage(
    config: ConfigOption = DEFAULT_CONFIG,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant.")] = None,
    since: Annotated[str, typer.Option("--since", help="How far back, such as 24h or 7d.")] = "7d",
    by: Annotated[By, typer.Option("--by", help="One line a tenant, or a tenant's day.")] = By.TENANT,
    output: Annotated[Format, typer.Option("--format", help="table, json or csv.")] = Format.TABLE,
) -> None:
    """Requests, tokens really sent, tokens direct MCP would have sent, and the difference."""
    from gateway.metering.ledger import GroupBy, LedgerUnavailable, summarise
    from gateway.metering.report import as_row

    seconds = parse_duration_option(since)
    loaded = load_config(config)
    if tenant is not None and tenant not in loaded.config.tenants:
        raise CommandFailed(f"unknown tenant {tenant!r}; the config has {', '.join(loaded.config.tenants) or 'none'}")
    group: tuple[GroupBy, ...] = ("tenant", "day") if by is By.DAY else ("tenant",)
    try:
        rows = summarise(
            loaded.config.metering.ledger,
            base=loaded.folder,
            tenant=tenant,
            since=time.time() - seconds,
            by=group,
        )
    except LedgerUnavailable as error:
        raise CommandFailed(str(error)) from None
    records = [as_row(row) for row in rows]
    if output is Format.JSON:
        typer.echo(json.dumps(records))
    elif output is Format.CSV:
        columns = list(records[0]) if records else ["tenant"]
        writer = csv.DictWriter(sys.stdout, columns)
        writer.writeheader()
        writer.writerows(records)
    else:
        _table(records, since)


def _table(records: Sequence[Mapping[str, object]], since: str) -> None:
    from rich.table import Table

    if not records:
        typer.echo(f"no usage in the last {since}", err=True)
        return
    table = Table(box=None, header_style="bold", title=f"last {since}", title_justify="left")
    for column in records[0]:
        table.add_column(HEADINGS.get(column, column), justify="left" if column in ("tenant", "day") else "right")
    for record in records:
        table.add_row(*(f"{v:,}" if isinstance(v, int) else "" if v is None else str(v) for v in record.values()))
    out().print(table)
