"""``python -m tests.conformance.serve gateway.yaml``: a gateway on a free port that needs no key.

The suite cannot send credentials, so each request gets the key of the config's only tenant on its way in; everything
behind that is the gateway as it is. The address, without path, is written to stdout as one line once all upstreams have
started and are in the catalogue.
"""

from __future__ import annotations

import asyncio
import socket
import sys

import uvicorn

from gateway.app import Gateway
from gateway.config.loader import load
from gateway.edge.http import Receive, Scope, Send
from gateway.tenancy.keyring import KeyRing

UPSTREAMS_S = 60.0


async def serve(path: str) -> None:
    loaded = load(path)
    (tenant,) = loaded.config.tenants
    with KeyRing.open(loaded.config.state, loaded.folder) as ring:
        key = ring.create(tenant, expires_in_s=None).text
    gateway = Gateway(loaded)
    authorization = (b"authorization", f"Bearer {key}".encode())

    async def with_key(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["headers"] = [*scope["headers"], authorization]
        await gateway.tenant_app(scope, receive, send)

    listening = socket.create_server(("127.0.0.1", 0))
    gateway.port = listening.getsockname()[1]
    settings = uvicorn.Config(with_key, lifespan="off", interface="asgi3", log_level="warning")
    async with gateway.running():
        async with asyncio.timeout(UPSTREAMS_S):
            await gateway.federation.started()
            await gateway.catalogue.settled()
        print(f"http://127.0.0.1:{gateway.port}", flush=True)
        await uvicorn.Server(settings).serve([listening])


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
