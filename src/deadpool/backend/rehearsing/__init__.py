"""Process groups without peers, and the recorded collectives that a rehearsal is given."""
