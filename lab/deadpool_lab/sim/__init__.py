"""A seeded world around the real cores: virtual time, links, machines, faults, and checkers apart from the cores.

Only the command line and the tests import this package.
"""
