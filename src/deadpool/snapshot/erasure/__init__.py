"""Erasure-coded memory: arithmetic, parity slots, and how a lost rank's snapshot is rebuilt from others. No torch.

Which nodes form a group, and which piece belongs to which stripe, is decided in protocol/features/coding/stripes.py.
"""
