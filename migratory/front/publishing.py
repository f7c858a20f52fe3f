"""Publications of a front's clients: numbers for them, and the way back for their answers.

All publications of one turn travel to the engine as one Pubs. All answers of one turn for one
connection leave as one ACK and one NACK.

Invariants: each publication with a pid that the engine got is answered once (PROTOCOL 6.6), and
at most `unanswered` of a connection are under way, one frame more at the most: then it is not
read from until half of them are answered (PROTOCOL 6.9). Publications without a pid are
answered only when refused; only the latest of them are remembered for that.
"""

from __future__ import annotations

from collections import deque

from migratory.front.connection import CLOSING, Connection
from migratory.front.limits import FrontLimits
from migratory.front.plane import Plane
from migratory.front.subscriptions import RETRY_MS
from migratory.front.talk import say
from migratory.wire.client import Ack, Acked, Nack, Nacked, Publish, publications
from migratory.wire.codes import Code
from migratory.wire.ids import Position
from migratory.wire.peer import Publication, Refusal
from migratory.wire.shard import Answers, PubAck, Pubs, ToEngine

_UNKNOWN = Position(0, 0)
_LOOSE = 10_000


class Publishing:
    """PUBLISH of clients, Answers of the engine."""

    def __init__(self, plane: Plane, limits: FrontLimits, to_engine: deque[ToEngine]) -> None:
        self._plane, self._to_engine = plane, to_engine
        self._max_payload = limits.client.payload_bytes
        self._unanswered = limits.client.unanswered
        self._per_turn = limits.publications_per_turn
        self._pubs: list[Publication] = []
        self._waiting: dict[int, tuple[Connection, int, int]] = {}  # ref -> (who, id, index)
        self._loose: dict[int, tuple[Connection, int, int]] = {}  # the same, without a pid
        self._loose_refs: deque[int] = deque()  # the oldest first
        self._next_ref = 1
        self._answered: list[Connection] = []  # with acks or nacks to send
        self.received = 0  # publications taken from clients

    def __len__(self) -> int:
        return len(self._waiting)

    def publish(self, conn: Connection, message: Publish) -> None:
        """Number the publications of a frame for the engine; refuse at once what is wrong."""
        ref = self._next_ref
        accepted, refused = publications(message, ref, self._max_payload)
        self._next_ref = ref + len(message.messages)
        if refused:
            self._refuse(conn, refused)
        waiting, frame_id = self._waiting if message.pid else self._loose, message.id
        for publication in accepted:
            waiting[publication.ref] = (conn, frame_id, publication.ref - ref)
        pubs = self._pubs
        pubs += accepted
        if message.pid:
            conn.unanswered += len(accepted)
            if conn.unanswered >= self._unanswered:
                self._plane.stop(conn)
        else:
            self._loosen(accepted)
        if len(pubs) >= self._per_turn:
            self._plane.full = True

    def _loosen(self, accepted: list[Publication]) -> None:
        """Without a pid only refusals come back, so the oldest are forgotten, not awaited."""
        refs = self._loose_refs
        refs.extend(publication.ref for publication in accepted)
        while len(refs) > _LOOSE:
            self._loose.pop(refs.popleft(), None)

    def hand_over(self) -> None:
        """Give the publications of this turn to the engine."""
        if self._pubs:
            self.received += len(self._pubs)
            self._to_engine.append(Pubs(self._pubs))
            self._pubs = []

    def answers(self, message: Answers) -> None:
        """Sort answers by connection; they leave with the next flush."""
        waiting, answered = self._waiting, self._answered
        for item in message.items:
            found = waiting.pop(item.ref, None)
            if found is None:
                self._loose_answer(item)
                continue
            conn, frame_id, index = found
            conn.unanswered -= 1
            if type(item) is PubAck:
                at = item.position or _UNKNOWN
                ack = Acked(frame_id, index, at.epoch, at.sequence, item.duplicate)
                if conn.acks is not None:
                    conn.acks.append(ack)
                else:
                    if conn.nacks is None:
                        answered.append(conn)
                    conn.acks = [ack]
            else:
                assert isinstance(item, Refusal)
                self._refuse(conn, [_nacked(frame_id, index, item)])

    def _loose_answer(self, item: PubAck | Refusal) -> None:
        """Something without a pid: silence unless it was refused (PROTOCOL 6.2)."""
        found = self._loose.pop(item.ref, None)
        if found is not None and isinstance(item, Refusal):
            conn, frame_id, index = found
            self._refuse(conn, [_nacked(frame_id, index, item)])

    def _refuse(self, conn: Connection, nacks: list[Nacked]) -> None:
        if conn.acks is None and conn.nacks is None:
            self._answered.append(conn)
        conn.nacks = nacks if conn.nacks is None else conn.nacks + nacks

    def flush(self) -> None:
        """Hand the answers of this turn to the plane, and read on where that made room."""
        answered, self._answered = self._answered, []
        for conn in answered:
            acks, nacks = conn.acks, conn.nacks
            conn.acks = conn.nacks = None
            if conn.state >= CLOSING:
                continue
            if acks is not None:
                say(self._plane, conn, Ack(acks))
            if nacks is not None:
                say(self._plane, conn, Nack(nacks))
            if conn.stopped and conn.unanswered <= self._unanswered // 2:
                self._plane.resume(conn)


def _nacked(frame_id: int, index: int, item: Refusal) -> Nacked:
    # A code that clients do not have is one between members, and means that it was not appended.
    code = item.code if Code.named(item.code) is not None else Code.RETRY.name
    return Nacked(frame_id, index, code, RETRY_MS.get(code, 0), item.expected, item.rewind)
