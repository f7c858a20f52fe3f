"""The guide's examples as tests use them: its blocks, and clusters that nobody has started."""

from __future__ import annotations

from pathlib import Path

from chaos.own_cluster import OwnCluster
from chaos.own_file import OwnFile, load

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "sre_guide.md"


def block(begins: str) -> str:
    """The block of the guide that follows a line with this beginning."""
    text = GUIDE.read_text()
    return text[text.index(f"\n{begins}") :].split("```")[1].partition("\n")[2]


def described(place: Path, text: str) -> OwnFile:
    """What a file with this text describes."""
    (place / "own.toml").write_text(text)
    return load(place / "own.toml")


def cluster_of(place: Path, hooks: str, directory: str = 'directory = "traces"\n') -> OwnCluster:
    """The guide's members with other hooks; nobody asks whether they are there."""
    text = block("`own.toml`").partition("[hooks]")[0].replace('directory = "traces"\n', directory)
    text = text.replace("groups = 8", 'groups = 8\nclients = "here"')
    return OwnCluster(described(place, f"{text}[hooks]\n{hooks}"), place, place)
