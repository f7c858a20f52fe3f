"""Draws the pictures of the documentation: `./dev python docs/pictures/draw.py` writes the SVGs.

Each picture is a list of shapes, so that a change of the text is a change of one line here. A test
compares the checked-in files with what this script would write.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent

INK, FAINT = "#1f2933", "#66727f"
PAPER, MEMBER, PART, KEEPER, CLIENT = "#ffffff", "#f2f5f9", "#dbe7f5", "#f6ead6", "#e3f1e1"
CALM, BUSY, COUNTED = "#f6dfdc", "#f6ead6", "#e3f1e1"


class Picture:
    """Shapes on a sheet."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size, self._title = (width, height), title
        self._shapes: list[str] = []

    def box(self, place: tuple[int, int, int, int], fill: str, *lines: str) -> None:
        """A rectangle (x, y, width, height); its first line is the name, the others explain."""
        x, y, width, height = place
        self._shapes.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}"'
            f' stroke="{FAINT}"/>'
        )
        for n, line in enumerate(lines):
            self.text(x + 10, y + 20 + 17 * n, line, strong=n == 0)

    def text(self, x: int, y: int, text: str, *, strong: bool = False, anchor: str = "") -> None:
        """One line; `strong` for names."""
        look = f'font-weight="bold" fill="{INK}"' if strong else f'font-size="12" fill="{FAINT}"'
        where = f' text-anchor="{anchor}"' if anchor else ""
        self._shapes.append(f'<text x="{x}" y="{y}" {look}{where}>{escape(text)}</text>')

    def arrow(self, *points: tuple[int, int], both: bool = False, dashed: bool = False) -> None:
        """A line through these points, with a head at its end or at both."""
        path = " ".join(f"{x},{y}" for x, y in points)
        heads = ' marker-start="url(#head)"' if both else ""
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self._shapes.append(
            f'<polyline points="{path}" fill="none" stroke="{INK}"{heads}'
            f' marker-end="url(#head)"{dashes}/>'
        )

    def svg(self) -> str:
        """The whole file."""
        width, height = self._size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' width="{width}" height="{height}" font-family="sans-serif" font-size="14">\n'
            f"<title>{escape(self._title)}</title>\n"
            '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8"'
            f' markerHeight="8" orient="auto-start-reverse"><path d="M0,0 L8,4 L0,8 z"'
            f' fill="{INK}"/></marker></defs>\n'
            f'<rect width="{width}" height="{height}" fill="{PAPER}"/>\n'
        )
        return head + "\n".join(self._shapes) + "\n</svg>\n"


def cluster() -> Picture:
    """Three members, their clients, their links, and ZooKeeper."""
    p = Picture(980, 640, "A cluster of three members")
    p.box((40, 20, 230, 62), CLIENT, "publisher", "client_sdk: numbers, resends")
    p.box((375, 20, 230, 62), CLIENT, "subscribers", "client_sdk: positions, resumes")
    p.box((710, 20, 230, 62), CLIENT, "subscribers", "any WebSocket client")
    for x, name in ((20, "member a"), (355, "member b"), (690, "member c")):
        _member(p, x, name)
        p.arrow((x + 135, 82), (x + 135, 172), both=True)
    p.text(163, 118, "WebSocket, protocol v1")
    p.text(498, 118, "WebSocket, protocol v1")
    p.text(833, 118, "WebSocket, protocol v1")
    p.arrow((290, 385), (355, 385), both=True)
    p.arrow((625, 385), (690, 385), both=True)
    p.arrow((155, 482), (155, 520), (825, 520), (825, 482), both=True)
    p.text(170, 513, "one link per pair: a data and a control connection")
    p.box(
        (230, 560, 520, 62), KEEPER, "ZooKeeper ensemble",
        "membership, registrations, boot numbers, epochs, elections: nothing else",
    )  # fmt: skip
    for x in (85, 895):
        edge = 230 if x < 490 else 750
        p.arrow((x, 482), (x, 590), (edge, 590), both=True, dashed=True)
    p.arrow((535, 482), (535, 560), both=True, dashed=True)
    return p


def _member(p: Picture, x: int, name: str) -> None:
    p.box((x, 132, 270, 350), MEMBER, name)
    p.box((x + 15, 172, 240, 62), PART, "front", "one epoll: sockets, frames, fan-out")
    p.arrow((x + 135, 234), (x + 135, 280), both=True)
    p.text(x + 145, 262, "FIFO (wire.shard)")
    p.box((x + 15, 280, 240, 187), PART, "engine", "driver: one turn after another")
    p.box((x + 27, 330, 216, 28), PAPER, "delivery: pages, resumes")
    p.box((x + 27, 370, 216, 28), PAPER, "coordinator: the order")
    p.box((x + 27, 410, 216, 28), PAPER, "cache: logs and histories")
    p.text(x + 27, 457, "all groups, some coordinated here")


def states() -> Picture:
    """The states of one member in one group; the numbers are those of the table beside it."""
    p = Picture(980, 560, "States of a member in a group")
    p.box((20, 10, 400, 380), MEMBER, "RECOVERING: promises, but nobody counts it")
    p.box((560, 10, 400, 540), MEMBER, "NORMAL: counted for Q and T")
    p.box((120, 110, 250, 62), CALM, "RECOVERING follower", "holds nothing, asks for a transfer")
    p.box((120, 300, 250, 62), BUSY, "RECOVERING candidate", "cold start, or an operator's order")
    p.box((610, 110, 250, 62), COUNTED, "NORMAL follower", "stores, acknowledges, delivers")
    p.box((610, 300, 250, 62), BUSY, "NORMAL candidate", "collects promises, fetches a tail")
    p.box((610, 470, 250, 62), COUNTED, "coordinator", "stamps, streams, counts, commits")
    _moves(p)
    return p


def _moves(p: Picture) -> None:
    """The transitions."""
    p.arrow((245, 60), (245, 110))
    p.text(255, 88, "1 boot")
    p.arrow((370, 128), (610, 128))
    p.text(490, 108, "2 state transferred", anchor="middle")
    p.text(490, 123, "3 the history begins", anchor="middle")
    p.arrow((610, 156), (370, 156))
    p.text(490, 174, "11 a higher floor", anchor="middle")
    p.arrow((180, 172), (180, 300))
    p.text(170, 240, "4 elected", anchor="end")
    p.arrow((270, 300), (270, 172))
    p.text(280, 240, "6 gave up, or fenced")
    p.arrow((245, 362), (245, 501), (610, 501))
    p.text(255, 490, "5 floor raised in ZooKeeper: opens empty")
    p.arrow((670, 172), (670, 300))
    p.text(660, 240, "7 elected", anchor="end")
    p.arrow((780, 300), (780, 172))
    p.text(790, 240, "9 gave up, or fenced")
    p.arrow((735, 362), (735, 470))
    p.text(725, 412, "8 T promises, best tail", anchor="end")
    p.arrow((860, 501), (940, 501), (940, 140), (860, 140))
    p.text(933, 400, "10 fenced, or", anchor="end")
    p.text(933, 416, "without Q for S/2", anchor="end")


PICTURES = {"cluster.svg": cluster, "states.svg": states}


def main() -> None:
    """Write all pictures beside this file."""
    for name, draw in PICTURES.items():
        (HERE / name).write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
