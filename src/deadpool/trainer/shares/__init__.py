"""The shares of a step, where ranks without a process are carried by others (rule 30, carried ranks)."""
