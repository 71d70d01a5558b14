"""A seeded world around the real cores: virtual time, links, machines, faults, and checkers apart from the cores.

Nothing but the command line and the tests imports this room.
"""
