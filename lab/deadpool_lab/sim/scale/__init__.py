"""A job of real size: the real cores of thousands of nodes and of one coordinator, and what the loss of a node costs.

Nothing is random or delayed here: every node answers at once, so that only the coordinator's own work is measured.
Trainers are scripted, and copies move without bytes.
"""
