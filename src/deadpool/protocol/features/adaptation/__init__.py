"""Protection that follows the health of nodes: guards, evictions, the interval, the scheme (rules 28 and 29)."""
