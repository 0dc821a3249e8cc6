"""What a client sees: the two tools of code mode, or the tenant's own tools in direct mode.

* :mod:`gateway.facade.base`: the interface that the edge calls, :class:`~gateway.facade.base.Facade`.
* :mod:`gateway.facade.definitions`: the two tools, word for word; constant for every tenant.
* :mod:`gateway.facade.code`: code mode: dispatches to the two tools below.
* :mod:`gateway.facade.docs`: ``docs_search``: which tools there are and how to call them, within a token budget.
* :mod:`gateway.facade.script`: what an ``execute_code`` script may call, and what it gets back.
* :mod:`gateway.facade.answer`: the text that goes back to the model: value, logs, errors, cut to its budget.
* :mod:`gateway.facade.direct`: direct mode: plain federated MCP, whole.
* :mod:`gateway.facade.features`: resources, prompts and completion of many upstreams as if of one server.
* :mod:`gateway.facade.relay`: what passes between an upstream and a direct client while a request runs, in both eras.
* :mod:`gateway.facade.hearing`: what direct clients said they want to hear of.
* :mod:`gateway.facade.changes`: who wants to hear of changes, and telling them.
* :mod:`gateway.facade.seals`: cursors and request states that clients carry for us.
* :mod:`gateway.facade.mode`: which of the two facades ``/mcp`` shows a tenant.
* :mod:`gateway.facade.accounts`: one request's books: tokens, metrics, ledger and ``_meta`` from one record.

The facade shapes; it never decides whether a call is allowed (the broker does) and never talks to an upstream.
"""
