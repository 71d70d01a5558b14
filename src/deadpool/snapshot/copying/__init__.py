"""Copies between live tensors and slots, in both directions, beside the script's own work."""
