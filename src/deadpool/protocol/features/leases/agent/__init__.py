"""Whether this node's machine serves this job, and what it does while it is parked."""
