"""The decisions of a pool of spare machines that serve several jobs: where trainers are parked, and who has a machine.

    assignment   which machine keeps trainers parked for which jobs: a pure function
    pool         the pool's own process: its jobs, its machines, what it tells them
    host         one machine: which agents run on it, and what it does while no job has it

No lease is decided here: an agent takes its machine by a lock of the kernel (rule 31, one job per machine).
"""
