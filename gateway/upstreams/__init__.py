"""The connections to the MCP servers behind the gateway, and the tasks that keep them alive.

Two types to know: :class:`~gateway.upstreams.federation.Federation` (all upstreams of a configuration) and
:class:`~gateway.upstreams.supervisor.Upstream` (one of them: ``status``, ``tools``, ``call_tool``).

==================  ====================================================================================
``base``            the interface of a connector and how a call can fail
``rpc``, ``era``    JSON-RPC envelopes and the choice between the two protocol eras; pure
``beside``          what passes between server and caller while a call runs: progress, log messages, questions
``dialogue``        requests and answers over one shared stream of messages
``stdio``           servers that we start: ``framer`` cuts lines, ``child`` owns the process, ``environment`` says what
                    it inherits, ``proctree`` finds what it has started
``http``            servers that we reach: ``httphead`` builds requests, ``httpwire`` is the connection pool,
                    ``httpreply`` says what an answer means, ``sse`` reads event streams, ``httplisten`` holds the
                    one of announcements, ``errands`` are messages that no caller waits for, ``paramheaders`` tells
                    which arguments are headers too
``legacy_sse``      servers that are reached in the way of 2024-11-05
``lifecycle``       states, transitions, backoff; pure
``supervisor``      one upstream and its owner task; ``listing`` reads its tools, ``results`` the answers of calls,
                    ``following`` keeps the resources whose updates are wanted
``federation``      all of them together
``redact``          makes foreign text fit to be shown
==================  ====================================================================================

A new transport is one new file that implements :class:`~gateway.upstreams.base.Connector` and one line in
``supervisor``.

Never here: tenants and what they may do (``broker``), names of tools across upstreams (``catalog``), the edge.
"""
