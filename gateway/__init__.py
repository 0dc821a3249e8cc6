"""codemode-gateway: one MCP endpoint with two tools, in front of all of an organisation's MCP servers.

A request travels one way through the house and comes back the same way::

    HTTP bytes
      → edge       is it well formed, who sends it, which protocol era?   (bytes → request of a known tenant)
      → facade     docs_search | execute_code | direct mode               (request → answer)
          → catalog    what may this tenant see, how is it written for a model?
          → kernels    run the script in a sandbox; the script asks for tools
              → broker     THE one door of every tool call: authorise, limit, dispatch, meter
                  → upstreams  the connection to that MCP server
      → metering   what did it cost, and what would direct MCP have cost? (records, never decides)
      → edge       (answer → HTTP bytes)

Read the package docstrings for the map of each room, and ``tests/test_architecture.py`` for who may import whom.
``gateway.errors`` is the shared vocabulary of failures; ``gateway.app`` is the one place where the rooms are joined.
"""

__version__ = "0.1.0"
