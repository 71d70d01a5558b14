"""What belongs to the state of a rank, how each kind is captured, and how it is restored."""
