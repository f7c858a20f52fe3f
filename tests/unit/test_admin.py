"""The admin port: pages, refusals, and strangers who speak no HTTP."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus

import msgspec
import pytest
import trio

from migratory.commands.status import recover
from migratory.errors import MigratoryError
from migratory.shell.admin import MAX_BODY, Admin, Page, Request, Response, answer


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


async def _listen(
    nursery: trio.Nursery, run: Callable[[trio.SocketListener], Awaitable[object]]
) -> str:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(run, listener)
    return f"127.0.0.1:{listener.socket.getsockname()[1]}"


class Waiting:
    """Members whose groups wait for the operator, each the best for one group of its own."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.addresses: list[str] = []

    def status(self, n: int) -> Page:
        """What member number n says: group n is nowhere longer than here."""
        groups = [
            {"group": g, "waits_for_operator": True, "status": "NORMAL",
             "last_epoch": 1, "last": int(g == n)} for g in range(3)
        ]  # fmt: skip
        return lambda _: answer(HTTPStatus.OK, {"member": f"m{n}", "groups": groups})

    def take(self, request: Request) -> Response:
        """The order is taken."""
        self.taken.append(request.body)
        return answer(HTTPStatus.ACCEPTED, {"member": "m", "groups": [0]})

    async def serve(self, n: int, nursery: trio.Nursery, order: Page) -> None:
        """Run the admin port of member number n."""
        admin = Admin({("GET", "/status"): self.status(n), ("POST", "/recover"): order})
        self.addresses.append(await _listen(nursery, admin.run))

    async def recover(self) -> None:
        """The operator's order."""
        with trio.fail_after(10):
            await recover(accept_loss=True, yes=True, admin=",".join(self.addresses))


def _refuses(_: Request) -> Response:
    return answer(HTTPStatus.FORBIDDEN, {"error": "FORBIDDEN", "detail": "not from there"})


def _starts(_: Request) -> Response:
    return answer(HTTPStatus.SERVICE_UNAVAILABLE, {"error": "NOT_STARTED"})


async def test_orders_that_are_refused_are_told_and_the_others_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`recover` orders everything that is taken, then names who refused which groups, and why."""
    async with trio.open_nursery() as nursery:
        cluster = Waiting()
        for n, order in enumerate((_refuses, _starts, cluster.take)):
            await cluster.serve(n, nursery, order)
        with pytest.raises(MigratoryError) as caught:
            await cluster.recover()
        nursery.cancel_scope.cancel()
    assert [msgspec.json.decode(body)["groups"] for body in cluster.taken] == [[2]]
    assert "m2 stands for group 2" in capsys.readouterr().out
    assert caught.value.code == "ORDER_REFUSED"
    assert "m0 does not take group 0: not from there" in caught.value.message
    assert "m1 does not take group 1: NOT_STARTED" in caught.value.message
    assert "on the machine of m0" in caught.value.remedy
    assert "on the machine of m1" not in caught.value.remedy


async def test_an_order_without_answer_is_not_called_refused() -> None:
    """A member that falls silent may have taken its order: `recover` says that nobody knows."""
    async with trio.open_nursery() as nursery:
        cluster = Waiting()

        async def dies(stream: trio.SocketStream) -> None:
            async with stream:
                if (await stream.receive_some(65536)).startswith(b"GET"):
                    body = cluster.status(0)(Request(b"")).body
                    await stream.send_all(b"HTTP/1.0 200 OK\r\n\r\n" + body)

        async def serve(listener: trio.SocketListener) -> None:
            await trio.serve_listeners(dies, [listener])

        cluster.addresses.append(await _listen(nursery, serve))
        await cluster.serve(1, nursery, cluster.take)
        with pytest.raises(MigratoryError) as caught:
            await cluster.recover()
        nursery.cancel_scope.cancel()
    assert [msgspec.json.decode(body)["groups"] for body in cluster.taken] == [[1]]
    assert caught.value.code == "ORDER_UNKNOWN"
    assert "m0 gave no answer about groups 0, 2" in caught.value.message
    assert "may have taken" in caught.value.message
    assert "machine" not in caught.value.remedy
