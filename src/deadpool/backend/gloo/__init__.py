"""Backends of gloo, and what their connections tell of lost peers."""
