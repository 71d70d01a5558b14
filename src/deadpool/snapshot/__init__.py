"""What is kept of a rank's state at one step, and how it travels. `arena`, `transfer` and `erasure` need no torch."""
