"""Which nodes there are, whether they answer, progress and reach each other."""
