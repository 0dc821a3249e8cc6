"""The border to clients and operators: bytes become requests of a known tenant here, answers become bytes.

The map, in the order a request meets it:

* :mod:`gateway.edge.guard`: below ASGI: sizes and deadlines of heads and bodies, ambiguous framing.
* :mod:`gateway.edge.http`: what both listeners ask of raw HTTP: Host, Origin, body size; small answers.
* :mod:`gateway.edge.strict`: one check of a whole body for what parsers read differently.
* :mod:`gateway.edge.wire`: JSON-RPC and MCP envelopes as values, without IO: parsing, results, errors.
* :mod:`gateway.edge.eras`: the rules of the two protocol eras as pure functions: which era a request belongs to,
  the ladder of checks of 2026-07-28.
* :mod:`gateway.edge.sessions`: signed session ids of the ``initialize`` era; no state is kept for them.
* :mod:`gateway.edge.mcp`: the ASGI endpoint that joins these and runs one request.
* :mod:`gateway.edge.running`: the requests in flight: their connections watched, cancelled by name.
* :mod:`gateway.edge.failures`: what a client is told when its request fails, as one table.
* :mod:`gateway.edge.client`: the client's end of one exchange: progress, log messages, questions and their answers.
* :mod:`gateway.edge.streams`: streams that stay open to announce changes, in both eras' form.
* :mod:`gateway.edge.exchange`: one answer on its way out: JSON, or an event stream once something must be said early.
* :mod:`gateway.edge.admin`: the operator's listener: health, metrics, the API.

The two types to know are :class:`~gateway.edge.mcp.McpEndpoint` and the :class:`~gateway.facade.base.Facade` that it
calls. The edge knows no tools, no upstreams and no kernels, and keeps no state but what is in flight.
``README.md`` in this folder argues the hard decisions.
"""
