"""`deadpool doctor`: looks for what would stop a job or slow it down, on one node or on all of them together.

For other parts of DeadPool, before they start a job:

    from deadpool.doctor.examination import compared, preflight

`preflight(...)` examines this machine and returns a Report; `compared(texts)` takes what `deadpool doctor --json`
printed on several machines and returns all findings. Both are for any process: neither forks it nor imports torch.
"""
