"""The process around the coordinator's core, and what commands ask of it."""
