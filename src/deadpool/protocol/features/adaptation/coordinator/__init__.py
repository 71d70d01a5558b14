"""What the coordinator decides from signs of illness, earlier failures and memory."""
