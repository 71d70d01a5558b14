"""Figures of a job for monitoring systems, all of them folded from its events. Read-only: nothing here decides."""
