"""Prints the reference of all metrics."""

from deadpool.views.metrics.document import document

print(document(), end="")
