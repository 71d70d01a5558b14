"""What the coordinator decides where replicas differ."""
