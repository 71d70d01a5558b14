"""Weeks in the life of a job of real size: the real coordinator core, light nodes, and virtual time that jumps.

Real: every join, loss, fence, plan, choice of a spare, rehearsal, drain, wait, return and Go is a `step` of the same
`Leadership` and `Coordinator` that run in production. Whether a version counts as committed, from which one a job
resumes, and when it has to go back to a durable checkpoint follows from the inventories and reports that it is fed.

Scripted: nodes only answer (`light_node.py`), after the durations that the setup gives. Aggregated: of the quiet time
between two faults the core is told nothing but the newest version that was complete, and the newest durable checkpoint.
Heartbeats are fed only where something depends on them.
"""
