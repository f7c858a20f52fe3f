"""The documents are true where a machine can tell: keys, tests, pictures, limits, events."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import pytest

from chaos.checker import CHECKS, Bounds
from migratory.config import Config, Section

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DECISIONS = sorted((DOCS / "adr").glob("[0-9]*.md"))

ROW = re.compile(r"^\| `([a-z_.]+)` \| ([^|]+) \| ([^|]+) \|", re.MULTILINE)
TEST = re.compile(r"`(test_[a-z0-9_]+)`")
VIOLATION = re.compile(r"[A-Z]+(?:-[A-Z]+)*")
EVENT = re.compile(r"^\| (`[a-z_]+`(?:, `[a-z_]+`)*) \|", re.MULTILINE)


def keys(kind: type[Section], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Each key of the configuration with its default and what may be written."""
    for field in msgspec.structs.fields(kind):
        key, inner = prefix + field.encode_name, field.type
        if get_origin(inner) is tuple:
            inner = get_args(inner)[0]  # a list of tables
        if isinstance(inner, type) and issubclass(inner, Section):
            yield from keys(inner, f"{key}.")
        else:
            yield key, _default(field.default), get_args(inner)[1].description


def _default(value: Any) -> str:
    if value is msgspec.NODEFAULT:
        return "required"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def test_every_key_of_the_configuration_is_explained() -> None:
    """The reference lists each key once, with its default and what an error message would say."""
    text = (DOCS / "operations.md").read_text()
    reference = text[text.index("## Configuration") : text.index("## Look")]
    listed = [(key, default, allowed) for key, default, allowed in ROW.findall(reference)]
    assert sorted(listed) == sorted(keys(Config))


def test_every_event_of_a_log_is_explained() -> None:
    """Whatever a member notes or logs by name stands in the table of events."""
    text = (DOCS / "operations.md").read_text()
    table = text[text.index("## Logs") : text.index("## What to do when")]
    told = {name for row in EVENT.findall(table) for name in re.findall("[a-z_]+", row)}
    noted = re.compile(r'(?:\bnote|\blog\.(?:info|warning|error))\(\s*"([a-z_]+)"')
    folders = ("coordinator", "migratory/shell", "migratory/node.py")
    sources = [path for name in folders for path in _sources(ROOT / name)]
    named = {event for path in sources for event in noted.findall(path.read_text())}
    assert named - told == set()


def _sources(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted(place.rglob("*.py"))


def test_tests_that_documents_name_exist() -> None:
    """A promise that points to a test points to one that is there."""
    there = set()
    for path in (ROOT / "tests").rglob("*.py"):
        there.add(path.stem)
        tree = ast.parse(path.read_text())
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        there |= {node.name for node in ast.walk(tree) if isinstance(node, functions)}
    named = {name for path in DOCS.rglob("*.md") for name in TEST.findall(path.read_text())}
    assert named
    assert named - there == set()


def test_violations_that_documents_name_exist() -> None:
    """Each name in the table of invariants is one that the simulation can raise."""
    text = (DOCS / "guarantees.md").read_text()
    table = text[text.index("| invariant | violation |") : text.index("Simulated subscribers")]
    rows = [row.split("|") for row in table.splitlines()[2:] if row]
    named = {name for row in rows for name in VIOLATION.findall(row[2])}
    sources = "".join(path.read_text() for path in (ROOT / "tests" / "simulation").glob("*.py"))
    assert {name for name in named if f'"{name}' not in sources} == set()
    assert len(named) > 20


def test_every_check_has_its_sentence() -> None:
    """The table of checks names what the checkers have, and the thresholds they begin with."""
    table = (DOCS / "guarantees.md").read_text().partition("## 8 Checks of a trace")[2]
    rows = [row.split("|") for row in table.splitlines() if row.startswith("| ")][1:]
    named = [name.strip() for row in rows for name in row[1].split(",")]
    assert sorted(named) == sorted(CHECKS)
    wanted = {f"--{key.replace('_', '-')}": str(value) for key, value in vars(Bounds()).items()}
    said = dict(re.findall(r"`(--[a-z]+-ms)` ([0-9]+)", table))
    assert said == {flag: value for flag, value in wanted.items() if flag in said}
    assert {"--silence-ms", "--lag-ms", "--heal-ms", "--ack-ms"} <= set(said)


def test_pictures_are_what_their_script_draws() -> None:
    """Nobody edits a picture by hand, and nobody forgets to draw it anew."""
    drawn = runpy.run_path(str(DOCS / "pictures" / "draw.py"))["PICTURES"]
    on_disk = {path.name: path.read_text() for path in (DOCS / "pictures").glob("*.svg")}
    assert on_disk == {name: draw().svg() for name, draw in drawn.items()}


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_decisions_have_one_form(path: Path) -> None:
    """Each says what the situation was, what was decided, what follows and what was refused."""
    headings = re.findall(r"^## (.+)$", path.read_text(), re.MULTILINE)
    assert headings == ["Context", "Decision", "Consequences", "Refused"]


def test_the_index_leads_to_every_document() -> None:
    """Whoever opens the folder finds everything that is in it."""
    index = (DOCS / "README.md").read_text()
    linked = set(re.findall(r"\]\(([^)#]+)", index))
    there = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - {"README.md"}
    assert there - linked == set()
