"""The process around an agent's core, with the threads that move snapshots."""
