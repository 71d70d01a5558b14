"""Errors of devices in steps of one real job that are audited, one after the other: each has to be found."""
