"""Generated training scripts: drawn from a seed, run without DeadPool, with it, and with injected faults."""
