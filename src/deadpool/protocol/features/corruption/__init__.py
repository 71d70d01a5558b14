"""State that replicas do not hold alike: who computed it, what becomes of it and of the node."""
