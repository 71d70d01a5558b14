"""What the processes of a job depend on, and how it is taken from them: disk, network, terminal."""
