"""Backends of NCCL, their communicators, and what the flight recorder knows."""
