"""What did a request cost, and what would direct MCP have cost? Records, never decides.

Figures are made once, in one order, and then only copied: texts go into a ``Tally`` (one a request), which settles into
frozen ``Tokens``; ``_meta``, metrics and ledger all carry those.

* :mod:`gateway.metering.context`: which texts of an MCP message enter a model's context.
* :mod:`gateway.metering.ranks`: finds a tokenizer's rank file on this machine and builds the encoding; no network.
* :mod:`gateway.metering.tokens`: ``TokenCounter``: counts any text safely; ``Count(tokens, estimated)``.
* :mod:`gateway.metering.parts`: ``Part`` and ``Tokens``: the two arms (really sent, counterfactual) and their sums.
* :mod:`gateway.metering.meter`: ``Meter``, the counting thread, and ``Tally``, the account of one request.
* :mod:`gateway.metering.metrics`: ``Metrics``: every Prometheus metric by name; ``series`` keeps its labels bounded.
* :mod:`gateway.metering.page`: the exposition, rendered off the event loop; and the event loop's lag.
* :mod:`gateway.metering.usage`: ``UsageRow`` and ``CallRow``: what is kept of a request; ``UsageSummary``.
* :mod:`gateway.metering.report`: summaries as plain rows for the command line and the API.
* :mod:`gateway.metering.ledger`: ``Ledger``, the interface of a store, and how one is opened by its URL.
* :mod:`gateway.metering.ledger_sqlite`: the ledger in one SQLite file; its tables in ``sqlite_tables``.

The types to know are ``Meter``/``Tally``, ``Metrics`` and ``UsageRow``.

Never here: a decision about a request (limits are tenancy's), a change of an answer, a wait in the event loop, a
network access to count a token, and a figure that is an estimate without saying so.
"""
