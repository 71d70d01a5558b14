"""Where no spare is left, ranks are carried by others that hold the same tensors (rule 30, carried ranks)."""
