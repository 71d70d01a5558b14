"""A pool of spare machines that serve several jobs: its own process, and one process per machine."""
