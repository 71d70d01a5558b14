"""Committed versions go to a store that outlives all machines (rule 25, only complete checkpoints count), and a job
that has lost every copy of a rank goes back to one (rule 26, a checkpoint is named anew)."""
