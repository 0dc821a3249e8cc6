"""What one HTTP answer means: status, content type, JSON or event stream → a JSON-RPC response or a typed failure.

Reads from an :class:`~gateway.upstreams.httpwire.Answer` and decides; sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from time import time

from gateway.upstreams import rpc
from gateway.upstreams.base import MAX_MESSAGE_BYTES, UpstreamFailed
from gateway.upstreams.errors import rpc_failed
from gateway.upstreams.httpwire import Answer, WireFailed
from gateway.upstreams.redact import Redactor
from gateway.upstreams.sse import EventTooLarge, SseParser

_ERROR_BODY = 64 * 1024
_MAX_RETRY_AFTER_S = 3600.0

Hear = Callable[[rpc.Request | rpc.Notification], None]
"""Takes one message that a server sent beside an answer."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one POST.

    Attributes:
        response: the JSON-RPC answer; None when the body was none.
        session_id: of the legacy era, "" when none was given.
        excerpt: the beginning of the body of an error, cleaned, for the operator.
        unfinished: the parser of an event stream that ended without the answer and may be taken up again.
    """

    status: int
    response: rpc.Response | None = None
    session_id: str = ""
    excerpt: str = ""
    retry_after_s: float | None = None
    unfinished: SseParser | None = None

    @property
    def error_code(self) -> int | None:
        """The code of the JSON-RPC error, None when it is none."""
        return self.response.error.code if self.response is not None and self.response.error is not None else None


class ReplyReader:
    """Reads the answers of one upstream.

    Args:
        upstream: for the errors.
        redactor: cleans what is quoted.
    """

    def __init__(self, upstream: str, redactor: Redactor) -> None:
        self._upstream = upstream
        self._redactor = redactor

    async def read(self, answer: Answer, message_id: int, hear: Hear) -> Reply:
        """The answer to one request.

        Args:
            hear: called with what an event stream says beside the answer. What it raises is raised here.

        Raises:
            WireFailed: it broke off.
            UpstreamFailed: it is an answer, but no MCP.
        """
        session_id = answer.header("mcp-session-id")
        if answer.status != 200:
            return await self._read_error(answer, message_id, session_id)
        kind = media_type(answer)
        if kind == "text/event-stream":
            parser = SseParser()
            response = await self.stream(answer, parser, message_id, hear)
            return Reply(200, response, session_id, unfinished=parser if response is None else None)
        if kind != "application/json":
            shown = self._redactor.one_line(kind, 60) or "none"
            raise UpstreamFailed(
                self._upstream,
                "http",
                f"HTTP 200 with content type {shown}, which is no MCP answer",
                detail=self._excerpt(await _error_body(answer)),
                delivered=True,
                status=200,
            )
        message = rpc.classify(await answer.read(MAX_MESSAGE_BYTES))
        if isinstance(message, rpc.Response) and _answers(message, message_id):
            return Reply(200, message, session_id)
        raise self._malformed(message.reason if isinstance(message, rpc.Garbage) else "it does not answer the request")

    async def stream(self, answer: Answer, parser: SseParser, message_id: int, hear: Hear) -> rpc.Response | None:
        """The answer to ``message_id`` from an event stream. ``hear``: as for :meth:`read`.

        Returns:
            None when the stream ended without it, or broke off and can be taken up again.

        Raises:
            WireFailed, UpstreamFailed
        """
        try:
            while (pieces := await answer.more()) is not None:
                for piece in pieces:
                    for event in parser.feed(piece):
                        response = self._take(event.data, message_id, hear) if event.type == "message" else None
                        if response is not None:
                            answer.finished = True
                            return response
        except EventTooLarge:
            reason = f"its answer is larger than {MAX_MESSAGE_BYTES >> 20} MiB"
            raise UpstreamFailed(self._upstream, "call", reason, delivered=True) from None
        except WireFailed:
            if parser.last_id is None:
                raise
        return None

    def result(self, reply: Reply, method: str) -> bytes:
        """JSON bytes of the ``result``.

        Raises:
            RpcFailed, UpstreamFailed
        """
        response = reply.response
        if response is None or (response.id is None and reply.status >= 500) or reply.status in (401, 403, 429):
            raise self.refusal(reply, method)
        if response.error is not None:
            raise rpc_failed(self._upstream, response.error, self._redactor)
        if reply.status != 200:
            raise self.refusal(reply, method)
        return response.result or b"null"

    def refusal(self, reply: Reply, method: str) -> UpstreamFailed:
        """What to say of an HTTP status that is no success."""
        reason = f"HTTP {reply.status} to {method}"
        if 300 <= reply.status < 400:
            reason += "; it redirects, and redirects are not followed"
        elif reply.status in (202, 204):
            reason += ", which is no answer to a request"
        elif reply.status == 401:
            reason += "; the credentials were not accepted"
        return UpstreamFailed(
            self._upstream,
            "http",
            reason,
            detail=reply.excerpt,
            delivered=method == "tools/call" and (reply.status >= 500 or reply.status < 300),
            status=reply.status,
            retry_after_s=reply.retry_after_s,
        )

    # ------------------------------------------------------------------ inside

    async def _read_error(self, answer: Answer, message_id: int, session_id: str) -> Reply:
        body = await _error_body(answer)
        message = rpc.classify(body)
        response = message if isinstance(message, rpc.Response) and _answers(message, message_id) else None
        return Reply(
            answer.status, response, session_id, self._excerpt(body), _retry_after(answer.header("retry-after"))
        )

    def _take(self, data: bytes, message_id: int, hear: Hear) -> rpc.Response | None:
        """One event: the answer, or something beside it."""
        match rpc.classify(data):
            case rpc.Response(id=got) as response if rpc.same_id(got, message_id):
                return response
            case rpc.Request() | rpc.Notification() as beside:
                hear(beside)
            case rpc.Garbage(id=got, reason=reason) if rpc.same_id(got, message_id):
                raise self._malformed(reason)
            case _:  # stray answers
                pass
        return None

    def _malformed(self, reason: str) -> UpstreamFailed:
        return UpstreamFailed(self._upstream, "call", f"its answer was malformed: {reason}", delivered=True)

    def _excerpt(self, body: bytes) -> str:
        return self._redactor.one_line(body[:4096].decode("utf-8", "replace"), 300)


def media_type(answer: Answer) -> str:
    """The content type without parameters, lower case."""
    return answer.header("content-type").partition(";")[0].strip().lower()


def _answers(response: rpc.Response, message_id: int) -> bool:
    """An error without id is what servers answer to a request that they could not read."""
    return rpc.same_id(response.id, message_id) or (response.id is None and response.error is not None)


async def _error_body(answer: Answer) -> bytes:
    try:
        return await answer.read(_ERROR_BODY)
    except WireFailed:
        return b""  # the status says enough


def _retry_after(value: str) -> float | None:
    """Seconds from a ``Retry-After`` header (seconds or a date), at most an hour; None when there is none."""
    if value.isdecimal() and len(value) < 10:
        return min(float(value), _MAX_RETRY_AFTER_S)
    try:
        return min(max(parsedate_to_datetime(value).timestamp() - time(), 0.0), _MAX_RETRY_AFTER_S) if value else None
    except ValueError:
        return None
