"""Options of the whole test suite."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the answers of protocol transcripts anew")
    parser.addoption("--all", action="store_true", help="every cell of the layout matrix, not only every pair")
    parser.addoption("--sample", action="store_true", help="of the layout matrix every layout and every moment only")
