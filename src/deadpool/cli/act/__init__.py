"""Commands that change a running job, or what it has left."""
