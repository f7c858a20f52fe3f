"""The admin port: a small HTTP/1.1 server for health, readiness, status and the operator's orders.

Invariants: whatever a stranger sends ends at most its own connection; every request has a bound in
time and size; orders (POST) are only taken from this machine and never from a web page.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from wsgiref.handlers import format_date_time

import h11
import msgspec
import orjson
import trio

from migratory.observability.logs import get_logger

MAX_HEAD = 16 << 10
MAX_BODY = 64 << 10
IDLE = 15.0  # seconds that a connection may take for its next request
MAX_CONNECTIONS = 64

log = get_logger("admin")


class Request(msgspec.Struct, frozen=True):
    """What a page gets to see of a request."""

    body: bytes


class Response(msgspec.Struct, frozen=True):
    """What a page answers."""

    status: int
    body: bytes
    kind: str = "application/json"


Page = Callable[[Request], Response]


def answer(status: HTTPStatus, content: object) -> Response:
    """A JSON answer."""
    return Response(status, orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS) + b"\n")


class Admin:
    """Serves pages by (method, path)."""

    def __init__(self, pages: Mapping[tuple[str, str], Page]) -> None:
        self._pages = pages
        self._connections = 0

    async def run(self, listener: trio.SocketListener) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            await trio.serve_listeners(self._serve, [listener], handler_nursery=nursery)

    async def _serve(self, stream: trio.SocketStream) -> None:
        if self._connections >= MAX_CONNECTIONS:
            await trio.aclose_forcefully(stream)
            return
        self._connections += 1
        try:
            await self._converse(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            pass
        except h11.LocalProtocolError:
            log.exception("admin_fault")
        finally:
            self._connections -= 1
            await trio.aclose_forcefully(stream)

    async def _converse(self, stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        while connection.states == {h11.CLIENT: h11.IDLE, h11.SERVER: h11.IDLE}:
            try:
                with trio.fail_after(IDLE):
                    request, body = await _read_request(stream, connection)
            except h11.RemoteProtocolError as error:
                if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    status = HTTPStatus(error.error_status_hint)
                    refusal = answer(status, {"error": "BAD_REQUEST", "detail": str(error)})
                    await _reply(stream, connection, refusal)
                return
            if request is None:
                return
            response = self._respond(request, body, _is_local(stream))
            await _reply(stream, connection, response, head=request.method == b"HEAD")
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()

    def _respond(self, request: h11.Request, body: bytes, local: bool) -> Response:
        path = request.target.partition(b"?")[0].decode("latin-1")
        method = "GET" if request.method == b"HEAD" else request.method.decode("latin-1")
        page = self._pages.get((method, path))
        if page is None:
            known = any(where == path for _, where in self._pages)
            status = HTTPStatus.METHOD_NOT_ALLOWED if known else HTTPStatus.NOT_FOUND
            return answer(status, {"error": status.name})
        from_page = any(name == b"origin" for name, _ in request.headers)
        if method != "GET" and (from_page or not local):
            detail = "orders are taken from this machine only, and not from web pages"
            return answer(HTTPStatus.FORBIDDEN, {"error": "FORBIDDEN", "detail": detail})
        try:
            return page(Request(body))
        except Exception:
            # A fault in a page must not take the member down with it.
            log.exception("admin_page_failed", path=path)
            return answer(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "INTERNAL_ERROR"})


async def _read_request(
    stream: trio.SocketStream, connection: h11.Connection
) -> tuple[h11.Request | None, bytes]:
    """The next request with its body; None when the other side has closed."""
    request = await _next_event(stream, connection)
    if not isinstance(request, h11.Request):
        return None, b""
    body = b""
    while isinstance(event := await _next_event(stream, connection), h11.Data):
        body += event.data
        if len(body) > MAX_BODY:
            status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            raise h11.RemoteProtocolError("the body is too large", error_status_hint=status)
    return request, body


async def _next_event(stream: trio.SocketStream, connection: h11.Connection) -> object:
    while (event := connection.next_event()) is h11.NEED_DATA:
        if connection.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            await stream.send_all(connection.send(go_on) or b"")
        connection.receive_data(await stream.receive_some(MAX_HEAD))
    return event


async def _reply(
    stream: trio.SocketStream, connection: h11.Connection, response: Response, head: bool = False
) -> None:
    status = HTTPStatus(response.status)
    headers = [
        ("Date", format_date_time(time.time())),
        ("Content-Type", response.kind),
        ("Content-Length", str(len(response.body))),
        ("Cache-Control", "no-store"),
    ]
    start = h11.Response(status_code=status, headers=headers, reason=status.phrase.encode())
    out = connection.send(start) or b""
    if not head:
        out += connection.send(h11.Data(data=response.body)) or b""
    out += connection.send(h11.EndOfMessage()) or b""
    with trio.fail_after(IDLE):
        await stream.send_all(out)


def _is_local(stream: trio.SocketStream) -> bool:
    host = stream.socket.getpeername()[0].partition("%")[0]
    address = ipaddress.ip_address(host)
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
