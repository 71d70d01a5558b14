"""Prints the reference of all metrics."""

from deadpool.views.metrics.catalog import document

print(document(), end="")
