"""Which versions are committed, how often one is captured, and which go to the durable store."""
