"""A job of real size: the real cores of thousands of nodes, one coordinator, one node that is lost, and what it costs.

No chance and no delays here: everybody answers at once, so what is measured is the coordinator's own work. Trainers are
puppets that answer as a trainer would; copies are moved by saying so.
"""
