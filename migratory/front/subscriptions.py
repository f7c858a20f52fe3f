"""Subscriptions of a front: who is live on which topic, and who is still catching up.

A topic in which a client of this front is interested is a Feed. Its live clients share one
position, the end of what was last announced, so a live subscription is nothing but a key in two
dictionaries. Every other subscription is a CatchUp: it has a position of its own, no queue, and at
most one request at the engine. A connection asks for no more pages at once than half of its
outbox could hold; the others wait in `wanted`.

Invariants: no message of a topic before its outcome (PROTOCOL 4.2); a client gets each page after
what precedes it and joins the live ones in the step that handles its last page; the engine is
told when the last subscription of a topic ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from migratory.front.connection import CLOSING, Connection
from migratory.front.frames import frame
from migratory.front.limits import FrontLimits
from migratory.front.plane import Plane
from migratory.front.talk import end, say
from migratory.wire import client as c
from migratory.wire.client import known_topic_fault
from migratory.wire.codec import Codec
from migratory.wire.codes import Code, Duty
from migratory.wire.entry import Entry
from migratory.wire.ids import Position
from migratory.wire.shard import (
    PAGE_BYTES,
    Fresh,
    Gap,
    Live,
    More,
    NotServed,
    Outcome,
    Page,
    Reattach,
    Reset,
    Resumed,
    Sub,
    ToEngine,
    Unsub,
)

RETRY_MS = {"RETRY": 100, "BUSY": 200, "UNAVAILABLE": 500, "TOO_FAST": 1000}
# A text may take six times its bytes in JSON; a frame still stays below a client's usual limit.
_FRAME_BYTES = 128 * 1024


class CatchUp:
    """A subscription that is not live, at its own position."""

    __slots__ = ("conn", "depth", "feed", "position", "request", "told")

    def __init__(self, conn: Connection, feed: Feed, position: Position | None) -> None:
        self.conn, self.feed, self.position = conn, feed, position
        self.depth = 0
        self.request = 0  # the id of the SUBSCRIBE
        self.told = True  # the outcome was told


class Feed:
    """A topic with subscriptions here."""

    __slots__ = ("catching", "live", "pending", "position", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.live: dict[Codec, dict[Connection, None]] = {}  # an encoding nobody has is no key
        self.catching = 0  # how many catch up
        self.position = Position(0, 0)  # of all live ones
        self.pending: list[Entry] = []  # announced, and not yet handed to the live ones


class Subscriptions:
    """SUBSCRIBE and UNSUBSCRIBE of clients, pages and live entries of the engine."""

    def __init__(self, plane: Plane, limits: FrontLimits, to_engine: deque[ToEngine]) -> None:
        self._plane, self._to_engine = plane, to_engine
        self._max_topics = limits.client.subscriptions
        self._window = limits.outbox_bytes // 2
        self._feeds: dict[str, Feed] = {}
        self._asked: dict[int, CatchUp] = {}  # requests at the engine
        self._last_sub = 0
        self._stirred: list[Feed] = []  # with pending entries
        self._untold: list[Connection] = []  # with outcomes to tell
        self._pages: dict[tuple[object, ...], bytes] = {}  # encoded in this turn
        self.delivered = 0  # messages handed to clients

    def __len__(self) -> int:
        return len(self._feeds)

    # ---- from clients --------------------------------------------------------------------------

    def subscribe(self, conn: Connection, message: c.Subscribe) -> None:
        """Start what can be started; deny the rest."""
        if conn.topics is None:
            conn.topics = {}
        if conn.wanted is None:
            conn.wanted = deque()
        for wanted in message.topics:
            topic = wanted.topic
            fault = known_topic_fault(topic)
            if fault is not None:  # PROTOCOL 4.4
                self._deny(conn, message.id, topic, Code.BAD_TOPIC, fault)
            elif topic in conn.topics:
                self._deny(conn, message.id, topic, Code.ALREADY_SUBSCRIBED)
            elif len(conn.topics) >= self._max_topics:
                self._deny(conn, message.id, topic, Code.TOO_MANY_SUBSCRIPTIONS)
            else:
                feed = self._feeds.get(topic)
                if feed is None:
                    feed = self._feeds[topic] = Feed(topic)
                catch = CatchUp(conn, feed, wanted.position)
                catch.depth, catch.request, catch.told = wanted.depth, message.id, False
                self._catch_up(catch)
        self.ask(conn)

    def unsubscribe(self, conn: Connection, message: c.Unsubscribe) -> None:
        """Give topics up; those that are not subscribed are no error (PROTOCOL 4.5)."""
        topics = conn.topics
        for topic in message.topics:
            if topics is not None and topic in topics:
                catch = topics.pop(topic)
                if catch is not None and not catch.told:
                    self._deny(conn, catch.request, topic, Code.CANCELLED)
                self._part(conn, topic, catch)
        self._tell(conn)
        say(self._plane, conn, c.Unsubscribed(message.id))
        self.ask(conn)

    def leave(self, conn: Connection) -> None:
        """A connection ends: so do its subscriptions."""
        topics, conn.topics = conn.topics, None
        conn.wanted = conn.outcomes = None
        for topic, catch in (topics or {}).items():
            self._part(conn, topic, catch)

    def ask(self, conn: Connection) -> None:
        """Ask for pages that the connection wants and has room for."""
        wanted, room = conn.wanted, self._window - conn.queued - conn.asked * PAGE_BYTES
        idle = conn.asked == 0 and conn.queued == 0
        while wanted and (room >= PAGE_BYTES or idle):
            catch = wanted.popleft()
            topic = catch.feed.topic
            if conn.topics is None or conn.topics.get(topic) is not catch:
                continue  # unsubscribed meanwhile
            self._last_sub += 1
            self._asked[self._last_sub] = catch
            conn.asked += 1
            room -= PAGE_BYTES
            idle = False
            self._to_engine.append(_request(self._last_sub, catch))
        if not wanted:
            conn.wanted = None

    def _catch_up(self, catch: CatchUp) -> None:
        conn, feed = catch.conn, catch.feed
        feed.catching += 1
        assert conn.topics is not None
        conn.topics[feed.topic] = catch
        self._want(catch)

    def _want(self, catch: CatchUp) -> None:
        if catch.conn.wanted is None:
            catch.conn.wanted = deque()
        catch.conn.wanted.append(catch)

    def _part(self, conn: Connection, topic: str, catch: CatchUp | None) -> None:
        """Take a subscription, which is no longer among the connection's, out of its feed."""
        feed = self._feeds[topic]
        if catch is None:
            live = feed.live[conn.codec]
            del live[conn]
            if not live:
                del feed.live[conn.codec]
        else:
            feed.catching -= 1
        if not feed.live and not feed.catching:
            del self._feeds[topic]
            self._to_engine.append(Unsub(topic))

    # ---- from the engine -----------------------------------------------------------------------

    def page(self, page: Page) -> None:
        """History for one subscription; the last page makes it a live one."""
        catch = self._answered(page.sub)
        if catch is None:
            return
        conn, position = catch.conn, Position(page.epoch, page.seq)
        self._announce(catch, page.outcome, position)
        if page.entries:
            self._tell(conn)  # PROTOCOL 4.2
            self._plane.push(conn, self._encoded(conn.codec, page))
            self.delivered += len(page.entries)
            position = Position(page.entries[-1].epoch, page.entries[-1].seq)
        if conn.state >= CLOSING:
            return  # it was too much for it
        if page.attached:
            self._attach(catch, position)
        else:
            catch.position = position
            self._want(catch)
        self.ask(conn)

    def not_served(self, message: NotServed) -> None:
        """A subscription cannot begin or go on here."""
        catch = self._answered(message.sub)
        if catch is None:
            return
        conn, topic = catch.conn, catch.feed.topic
        code = Code.named(message.code) or Code.UNAVAILABLE
        if code.duty is Duty.ELSEWHERE:
            end(self._plane, conn, code)
            return
        assert conn.topics is not None
        del conn.topics[topic]
        if catch.told:
            retry = RETRY_MS.get(code.name, 0)
            say(self._plane, conn, c.Denied(topic, code.name, code.sentence, retry))
        else:
            self._deny(conn, catch.request, topic, code)
        self._part(conn, topic, catch)
        self.ask(conn)

    def live(self, message: Live) -> None:
        """Entries for all live subscriptions of a topic; they leave with the next flush."""
        feed = self._feeds.get(message.topic)
        if feed is None or not feed.live:
            return
        if feed.pending:
            feed.pending += message.entries
        else:
            feed.pending = message.entries.copy()
            self._stirred.append(feed)
        last = message.entries[-1]
        feed.position = Position(last.epoch, last.seq)

    def reattach(self, message: Reattach) -> None:
        """The topic's state was replaced: all live subscriptions catch up from their position."""
        feed = self._feeds.get(message.topic)
        if feed is None:
            return
        self._dispatch(feed)
        live, feed.live = feed.live, {}
        for connections in live.values():
            for conn in connections:
                catch = CatchUp(conn, feed, feed.position)
                self._catch_up(catch)
                self.ask(conn)

    def _answered(self, sub: int) -> CatchUp | None:
        """The subscription whose request was answered, unless it has ended meanwhile."""
        catch = self._asked.pop(sub)
        conn = catch.conn
        conn.asked -= 1
        if conn.topics is not None and conn.topics.get(catch.feed.topic) is catch:
            return catch
        if conn.state < CLOSING:
            self.ask(conn)
        return None

    def _attach(self, catch: CatchUp, position: Position) -> None:
        conn, feed = catch.conn, catch.feed
        self._dispatch(feed)  # what was announced before this page is on this page
        if conn.topics is None:
            return  # that was too much for it
        feed.catching -= 1
        feed.position = position
        feed.live.setdefault(conn.codec, {})[conn] = None
        conn.topics[feed.topic] = None

    # ---- output --------------------------------------------------------------------------------

    def flush(self) -> None:
        """Hand everything announced in this turn to the plane."""
        stirred, self._stirred = self._stirred, []
        for feed in stirred:
            self._dispatch(feed)
        self._tell_all()
        self._pages.clear()

    def _dispatch(self, feed: Feed) -> None:
        pending, feed.pending = feed.pending, []
        if not pending:
            return
        self._tell_all()
        for codec, connections in list(feed.live.items()):
            self.delivered += len(pending) * len(connections)
            for entries in _chunks(pending):
                message = frame(1 if codec.text else 2, codec.messages(feed.topic, entries))
                self._plane.fan_out(connections, message)

    def _announce(self, catch: CatchUp, outcome: Outcome | None, position: Position) -> None:
        """Tell the outcome of a SUBSCRIBE, or what happened to a subscription (PROTOCOL 5.4)."""
        conn, topic = catch.conn, catch.feed.topic
        if not catch.told:
            assert outcome is not None
            catch.told = True
            self._outcome(conn, catch.request, _told(topic, outcome, position))
        elif isinstance(outcome, Gap):
            gap = c.Gap(topic, position, outcome.asked, outcome.first, outcome.last)
            say(self._plane, conn, gap)
        elif isinstance(outcome, Reset):
            say(self._plane, conn, c.Reset(topic, position, outcome.reason))

    def _deny(
        self, conn: Connection, request: int, topic: str, code: Code, detail: str = ""
    ) -> None:
        denied = c.Outcome(
            topic,
            "denied",
            code=code.name,
            message=detail or code.sentence,
            retry_after=RETRY_MS.get(code.name, 0),
        )
        self._outcome(conn, request, denied)

    def _outcome(self, conn: Connection, request: int, outcome: c.Outcome) -> None:
        if conn.outcomes is None:
            conn.outcomes = []
            self._untold.append(conn)
        conn.outcomes.append((request, outcome))

    def _tell(self, conn: Connection) -> None:
        """The outcomes of a connection known so far, one frame for each request."""
        if conn.outcomes is None:
            return
        by_request: dict[int, list[c.Outcome]] = {}
        for request, outcome in conn.outcomes:
            by_request.setdefault(request, []).append(outcome)
        conn.outcomes = None
        for request, outcomes in by_request.items():
            say(self._plane, conn, c.Subscribed(request, outcomes))

    def _tell_all(self) -> None:
        untold, self._untold = self._untold, []
        for conn in untold:
            self._tell(conn)

    def _encoded(self, codec: Codec, page: Page) -> bytes:
        """The page as a frame, encoded once for a herd that asks for the same."""
        first, last = page.entries[0], page.entries[-1]
        key = (codec, page.topic, first.seq, last.epoch, last.seq)
        found = self._pages.get(key)
        if found is None:
            payload = codec.messages(page.topic, page.entries)
            found = self._pages[key] = frame(1 if codec.text else 2, payload)
        return found


def _request(sub: int, catch: CatchUp) -> Sub | More:
    if catch.told:
        assert catch.position is not None
        return More(sub, catch.feed.topic, catch.position)
    return Sub(sub, catch.feed.topic, catch.position, catch.depth)


def _told(topic: str, outcome: Outcome, position: Position) -> c.Outcome:
    match outcome:
        case Fresh():
            return c.Outcome(topic, "fresh", position)
        case Resumed(missed):
            return c.Outcome(topic, "resumed", position, missed)
        case Gap(asked, first, last):
            return c.Outcome(topic, "gap", position, asked=asked, first=first, last=last)
        case Reset(reason):
            return c.Outcome(topic, "reset", position, reason=reason)


def _chunks(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Entries in lists that fit into frames."""
    if sum(len(e.payload) for e in entries) <= _FRAME_BYTES and len(entries) <= 1000:
        yield entries
        return
    chunk: list[Entry] = []
    size = 0
    for entry in entries:
        if chunk and (size + len(entry.payload) > _FRAME_BYTES or len(chunk) == 1000):
            yield chunk
            chunk, size = [], 0
        chunk.append(entry)
        size += len(entry.payload)
    yield chunk
