"""A job on a terminal, live: what `deadpool show top` shows, and what its keys do. Reads the status and the events."""
