"""When a checkpoint is written, which complete ones there are, and what a recovery does with them."""
