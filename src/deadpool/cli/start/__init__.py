"""Commands that start a process of a job here."""
