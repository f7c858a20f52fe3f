"""The option that writes what happens into scenario files, to be read before it is accepted."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --rewrite."""
    parser.addoption(
        "--rewrite", action="store_true", help="write the traces of scenarios into their files"
    )
