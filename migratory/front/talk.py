"""Saying things to a client, in its encoding."""

from __future__ import annotations

from migratory.front.connection import HANDSHAKE, Connection
from migratory.front.frames import close_frame, frame
from migratory.front.plane import Plane
from migratory.wire.client import Error, ServerMessage
from migratory.wire.codes import Code


def encoded(conn: Connection, message: ServerMessage) -> bytes:
    """A message as a WebSocket frame for this client."""
    return frame(conn.whole & 0x0F, conn.codec.encode(message))


def say(plane: Plane, conn: Connection, message: ServerMessage) -> None:
    """Queue a message for a client."""
    plane.push(conn, encoded(conn, message))


def end(plane: Plane, conn: Connection, code: Code, detail: str = "") -> None:
    """ERROR, CLOSE and the end of a connection (PROTOCOL 8.1)."""
    if conn.state == HANDSHAKE:
        plane.drop(conn)
        return
    error = encoded(conn, Error(code.name, detail or code.sentence))
    close = close_frame(code.number, code.name)
    # What a slow client did not take is thrown away: it resumes from its position.
    plane.finish(conn, error, close, discard=code is Code.SLOW_CONSUMER)
