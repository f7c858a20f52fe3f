"""The tree is tidy: sizes, docstrings, links and names that no compiler looks after."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 70
MADE = {"__pycache__", "build", "dist", "htmlcov", "node_modules", "runs"}
VAGUE_NAMES = {"utils", "util", "helper", "helpers", "manager", "managers", "misc", "common"}
# Written apart, so that this file does not name what it forbids.
MACHINE_PATHS = re.compile("/wo" + "rk/|/ro" + "ot/|/ho" + "me/[a-z]")
REGISTRIES = re.compile("py" + r"pi\.org|python" + r"hosted\.org|npm" + r"js\.(com|org)")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def listed(*suffixes: str) -> list[Path]:
    """Files of the project, never what tools and the environment made."""
    found: list[Path] = []
    for folder, inner, names in os.walk(ROOT):
        inner[:] = [name for name in inner if not name.startswith(".") and name not in MADE]
        found += [Path(folder, name) for name in sorted(names) if name.endswith(suffixes)]
    return found


def sources() -> list[Path]:
    """All Python files."""
    return [*listed(".py"), ROOT / "dev"]


def shown(path: Path) -> str:
    """A path as people write it."""
    return str(path.relative_to(ROOT))


def parsed() -> Iterator[tuple[str, ast.Module]]:
    """Each Python file with its syntax tree."""
    for path in sources():
        yield shown(path), ast.parse(path.read_text(), filename=shown(path))


def functions(tree: ast.AST) -> Iterator[Function]:
    """All functions in a tree, also nested ones."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def public_parts(tree: ast.Module) -> Iterator[ast.ClassDef | Function]:
    """Classes and functions that others may use: in the module and in its public classes."""
    pending: list[ast.Module | ast.ClassDef] = [tree]
    while pending:
        for node in pending.pop().body:
            if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
                yield node
                if isinstance(node, ast.ClassDef):
                    pending.append(node)


def test_no_file_is_too_long() -> None:
    """A file that has grown past its bound is two things and gets cut in two."""
    sizes = {shown(path): len(path.read_text().splitlines()) for path in sources()}
    assert {name: size for name, size in sizes.items() if size > MAX_FILE_LINES} == {}


def test_no_function_is_too_long() -> None:
    """A function fits on a screen."""
    sizes = {
        f"{name}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for name, tree in parsed()
        for node in functions(tree)
    }
    assert {name: size for name, size in sizes.items() if size > MAX_FUNCTION_LINES} == {}


def test_every_module_says_its_role() -> None:
    """Each module opens with a docstring."""
    assert [name for name, tree in parsed() if not ast.get_docstring(tree)] == []


def test_every_public_part_says_what_it_is() -> None:
    """Public classes, functions and all tests have a docstring that says what they promise."""
    silent = [
        f"{name}:{node.lineno} {node.name}"
        for name, tree in parsed()
        for node in public_parts(tree)
        if not ast.get_docstring(node)
    ]
    assert silent == []


def test_names_say_what_things_are() -> None:
    """No file is called after having no subject."""
    vague = [
        shown(path)
        for path in listed(".py")
        if VAGUE_NAMES & {*path.relative_to(ROOT).parent.parts, *path.stem.split("_")}
    ]
    assert vague == []


def test_links_in_documents_lead_somewhere() -> None:
    """A link to a file of this project names a file that exists."""
    dead = [
        f"{shown(path)}: {target}"
        for path in listed(".md")
        for target in LINK.findall(path.read_text())
        if not re.match(r"[a-z]+:|#", target)
        and not (path.parent / target.partition("#")[0]).exists()
    ]
    assert dead == []


@pytest.mark.parametrize("forbidden", [MACHINE_PATHS, REGISTRIES], ids=["paths", "registries"])
def test_nothing_ties_the_project_to_one_machine(forbidden: re.Pattern[str]) -> None:
    """No file names a path of somebody's machine or the address of a package registry."""
    found = [
        f"{shown(path)}: {match.group()}"
        for path in [*sources(), *listed(".md", ".toml", ".txt", ".json", ".cfg")]
        if (match := forbidden.search(path.read_text(errors="replace")))
    ]
    assert found == []
