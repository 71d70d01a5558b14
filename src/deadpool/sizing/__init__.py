"""How many spares, which protection, how often: the model behind `deadpool plan`. Formulas and their inputs, no I/O but
reading logs.

    inputs        what a user says of cluster, job and prices, checked, with a default for everything
    failure_mix   which kinds of interruptions there are, how often, and how long a node is away after each
    history       rates from a failure log, or from the events of jobs, with their uncertainty
    phases        how long each part of a recovery takes: measured, or by default
    protection    memory, bytes on the wire, and time to re-protect, for each scheme
    spare_pool    how often fewer nodes are there than the job needs
    goodput       the model: the share of time in which new steps are computed
    band          how much one run differs from what is expected
    alternatives  the same cluster under torchrun with checkpoints, and under peers with warm standbys
    advice        the choice: spares, scheme, intervals
    text, chart   the answer, to read and as an SVG

`protocol/coordinator/recovery/planner.py` is something else: it plans one recovery.
"""
