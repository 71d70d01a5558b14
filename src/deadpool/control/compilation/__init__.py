"""Reads and writes files of compiled code."""
