"""This machine: processes, files of their owner, memory, health. Nothing here knows of a job."""
