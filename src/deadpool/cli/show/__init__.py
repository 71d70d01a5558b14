"""Commands that show a job and change nothing."""
