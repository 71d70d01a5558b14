"""Real processes, real faults: a job is hit again and again, and must come out as if nothing had happened."""
