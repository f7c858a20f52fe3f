"""The admin port: pages, refusals, and strangers who speak no HTTP."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from http import HTTPStatus

import pytest
import trio

from migratory.commands.status import recover
from migratory.errors import MigratoryError
from migratory.shell.admin import MAX_BODY, Admin, Request, Response, answer


def _hello(_: Request) -> Response:
    return answer(HTTPStatus.OK, {"hello": "world"})


def _echo(request: Request) -> Response:
    return answer(HTTPStatus.ACCEPTED, {"body": request.body.decode()})


def _broken(_: Request) -> Response:
    raise ValueError("a fault of a page")


PAGES = {("GET", "/hello"): _hello, ("POST", "/echo"): _echo, ("GET", "/broken"): _broken}


@contextlib.asynccontextmanager
async def client() -> AsyncIterator[trio.SocketStream]:
    """A connection to a running admin server."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Admin(PAGES).run, listener)
        stream = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        async with stream:
            yield stream
        nursery.cancel_scope.cancel()


async def ask(stream: trio.SocketStream, request: bytes) -> tuple[int, bytes]:
    """Send bytes; the status and the body of the answer."""
    await stream.send_all(request)
    got = b""
    with trio.fail_after(10):
        while b"\r\n\r\n" not in got:
            got += await stream.receive_some(65536) or b"\r\n\r\n"
        head, _, body = got.partition(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0")
        while len(body) < size:
            body += await stream.receive_some(65536)
    return int(head.split()[1]), body


async def test_pages_are_served_on_one_connection() -> None:
    """Requests follow each other; a page gets the body and its answer is JSON."""
    async with client() as stream:
        get = b"GET /hello?x=1 HTTP/1.1\r\nHost: a\r\n\r\n"
        assert await ask(stream, get) == (200, b'{"hello":"world"}\n')
        post = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"
        assert await ask(stream, post) == (202, b'{"body":"hi"}\n')
        assert await ask(stream, get) == (200, b'{"hello":"world"}\n')


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n", 404),
        (b"DELETE /hello HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"GET /broken HTTP/1.1\r\nHost: a\r\n\r\n", 500),
        (b"NONSENSE\r\n\r\n", 400),
        (b"GET /" + b"a" * 20_000, 431),
        (b"POST /echo HTTP/1.1\r\nHost: a\r\nOrigin: http://b\r\nContent-Length: 0\r\n\r\n", 403),
        (
            b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY + 1)
            + b"x" * (MAX_BODY + 1),
            413,
        ),
    ],
    ids=["unknown", "method", "fault", "noise", "long head", "web page", "long body"],
)
async def test_what_is_not_served_is_refused(request_bytes: bytes, status: int) -> None:
    """Each kind of wrong request has its status, and the server goes on."""
    async with client() as stream:
        assert (await ask(stream, request_bytes))[0] == status


def _waits(_: Request) -> Response:
    group = {"group": 0, "waits_for_operator": True, "status": "NORMAL", "last_epoch": 1, "last": 1}
    return answer(HTTPStatus.OK, {"member": "m7", "groups": [group]})


def _refuses(_: Request) -> Response:
    return answer(HTTPStatus.FORBIDDEN, {"error": "FORBIDDEN", "detail": "not from there"})


async def test_an_order_that_is_refused_is_told() -> None:
    """`recover` never says that a member stands which did not take the order."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    pages = {("GET", "/status"): _waits, ("POST", "/recover"): _refuses}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Admin(pages).run, listener)
        admin = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        with pytest.raises(MigratoryError, match=r"ORDER_REFUSED.*not from there\n.*of m7"):
            await recover(accept_loss=True, yes=True, admin=admin)
        nursery.cancel_scope.cancel()
