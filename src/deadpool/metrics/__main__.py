"""Prints the reference of all metrics."""

from deadpool.metrics.document import document

print(document(), end="")
