"""The process around a training script: how it is forked, gets its rank, and runs the script once."""
