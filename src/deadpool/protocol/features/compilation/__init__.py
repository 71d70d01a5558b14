"""Spares have the compiled code of the live ranks, so that none of their processes compiles it again."""
