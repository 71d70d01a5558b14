"""A seeded world of one pool, its machines and several jobs, around the real cores of pool, host and lease.

Jobs are small models here: they lose nodes and seat spares. What jobs do inside is the subject of the other simulator.
"""
