"""Real faults injected into real jobs, whose results must be equal to those of undisturbed runs bit for bit."""
