"""The unit of all ratios: a bare Starlette handler that reads a JSON body and answers with JSON."""

from __future__ import annotations

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


async def handler(request: Request) -> JSONResponse:
    body = await request.json()
    return JSONResponse({"jsonrpc": "2.0", "id": body["id"], "result": {"content": [{"type": "text", "text": "ok"}]}})


app = Starlette(routes=[Route("/mcp", handler, methods=["POST"])])

if __name__ == "__main__":
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
        timeout_keep_alive=75,
    )
