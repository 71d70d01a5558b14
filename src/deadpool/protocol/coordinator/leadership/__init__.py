"""Which process is the coordinator, and what a new one does first."""
