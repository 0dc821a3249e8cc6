"""The commented ``gateway.yaml`` that ``gateway init`` writes. It loads as it is, without any variable set."""

from __future__ import annotations

from typing import Final

TEMPLATE: Final = """\
# yaml-language-server: $schema=./gateway.schema.json
#
# Configuration of codemode-gateway. `gateway check` finds every mistake; editors complete from the schema above.
# ${VAR} and ${VAR:-default} are taken from the environment, ${file:/run/secrets/x} from a file; $${ is a literal ${.
# A variable that is set to nothing counts as set. Durations: 250ms, 30s, 5m. Sizes: 65536, 64MiB.
version: 1

# The listener of the agents: POST /mcp
server:
  host: 127.0.0.1
  port: ${GATEWAY_PORT:-8080}
  # publicUrl: "https://mcp.example.com"    # how clients reach it, when it is behind a proxy

# The listener of the operator: console, metrics, health. A token is required when host is not a loopback address.
admin:
  host: 127.0.0.1
  port: 9090
  token: "${GATEWAY_ADMIN_TOKEN:-}"

# The MCP servers, in the shape of mcpServers. `gateway import FILE` turns the file of another client into this.
upstreams:
  time:
    command: uvx
    args: [mcp-server-time]
  # files:
  #   command: npx
  #   args: ["-y", "@modelcontextprotocol/server-filesystem", "/srv/docs"]
  # search:
  #   url: "https://search.example.com/mcp"
  #   headers: {Authorization: "Bearer ${SEARCH_TOKEN}"}
  #   callTimeout: 20s                     # not more than wallMs of the tenants below
  #   tools:
  #     search_web: {alias: web, description: "Search the web."}
  #     search_admin: {disabled: true}

# Who may use which of their tools. `gateway keys create --tenant default` makes a key.
tenants:
  default:
    mode: code                             # code: two tools; direct: the tools themselves; auto: direct while few
    upstreams:
      time: ["*"]                          # patterns of tool names; "!name" takes one away and always wins
    kernel: python
    manifest:                              # what scripts may do; what is not allowed here is denied
      allowedHosts: []                     # such as api.example.com or "*.example.com"; * is one label
      allowedReadPaths: []
      allowedWritePaths: []
      env: {}
      cpuMs: 5000
      memoryLimitBytes: 64MiB
      wallMs: 30000
      maxToolCalls: 100
      maxParallelCalls: 16
      maxOutputTokens: 6000
    limits:
      requestsPerMinute: 600
      toolCallsPerMinute: 6000
      # tokensPerDay: 5000000
      concurrentExecutions: 8

# The sandboxes that run scripts. `gateway doctor` shows which engines work on this machine.
kernels:
  python: {engine: monty, workers: 8}

# Where usage and keys are kept: sqlite:///FILE is relative to the folder of this file, sqlite:////FILE is absolute.
metering:
  encoding: o200k_base
  ledger: "sqlite:///gateway.db"
state:
  keys: "sqlite:///gateway.db"
  quotas: "memory://"
"""
