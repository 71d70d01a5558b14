"""Options of the whole test suite."""

import contextlib

import pytest

with contextlib.suppress(ImportError):  # the machine with the GPU need not have it
    import hypothesis

    hypothesis.settings.register_profile("deadpool", deadline=None, database=None)  # a busy machine is no failure
    hypothesis.settings.load_profile("deadpool")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the answers of protocol transcripts anew")
    parser.addoption("--update-pictures", action="store_true", help="take the pictures of the dashboard in docs anew")
    parser.addoption("--all", action="store_true", help="every cell of the layout matrix, not only every pair")
    parser.addoption(
        "--sample", action="store_true", help="a sample of the layout matrix, and nothing that is marked as thorough"
    )


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a process of xdist: the one that started it hears of all failures
        config.pluginmanager.register(_FailuresAtOnce(config))


class _FailuresAtOnce:
    """Prints a failure when it happens: the whole check goes on for minutes."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            lines = (crash.message if crash else report.longreprtext).strip().splitlines()
            terminal.write_line(f"\nFAILED {report.nodeid} ({report.when}): {' '.join(lines[:3])}", red=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--sample"):
        left_out = [item for item in items if item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]
    _lengthen_limits(items, float(config.getini("timeout") or 0))


def _lengthen_limits(items: list[pytest.Item], at_least_s: float) -> None:
    """A limit ends a test that hangs. No mark makes it shorter: on a slow machine good tests would trip over it."""
    for item in items:
        mark = item.get_closest_marker("timeout")
        if mark is not None and mark.args and mark.args[0] < at_least_s:
            item.add_marker(pytest.mark.timeout(at_least_s), append=False)
