"""Runs a protected job on a Ray cluster. Needs Ray (`pip install 'torch-deadpool[ray]'`) on every node."""

from deadpool.clusters.ray.run import run

__all__ = ["run"]
