"""What operators look at: the live page and the report of a job, both from its one event log."""
