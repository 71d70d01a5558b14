"""How many spares, which protection, how often: the model behind `deadpool plan`. Formulas and their inputs, no I/O but
reading logs.

    inputs           what a user says of cluster, job and prices, with defaults, and how long recoveries take
    failure_history  which kinds of interruptions there are and how often, from logs or from the events of jobs
    protection       memory, bytes on the wire, and time to protect again, for each scheme
    goodput          the model: the share of time in which new steps are computed, here and under others
    audits           how often a step is computed twice, against errors that nobody sees
    advice           the choice: spares, scheme, intervals
    presentation     the answer, to read and as an SVG

`protocol/coordinator/recovery/planner.py` is something else: it plans one recovery.
"""
