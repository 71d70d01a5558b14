"""Which versions are committed, and how often one is captured."""
