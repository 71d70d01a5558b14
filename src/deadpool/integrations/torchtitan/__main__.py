"""Runs in place of `torchtitan.train`, with the same arguments: the trainer that it builds is protected."""

from __future__ import annotations

from typing import Any

from torchtitan import train
from torchtitan.config import ConfigManager

from deadpool.integrations.torchtitan.hooks import protect


class _ProtectedConfig:
    """Torchtitan's config, whose `build` gives a protected trainer. (The config itself has no room for attributes.)"""

    def __init__(self, config: Any) -> None:
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)

    def build(self) -> Any:
        trainer = self._config.build()
        protect(trainer)
        return trainer


class _ProtectedConfigManager(ConfigManager):  # type: ignore[misc]
    def parse_args(self, args: list[str] | None = None) -> Any:
        return _ProtectedConfig(super().parse_args(args))


def main() -> None:
    train.ConfigManager = _ProtectedConfigManager
    train.main()


if __name__ == "__main__":
    main()
