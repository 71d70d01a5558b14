"""Protection that follows the health of nodes: guards, evictions, the interval, the scheme (rule 28, protection changes
slowly and within bounds; rule 29, ill nodes leave one at a time)."""
