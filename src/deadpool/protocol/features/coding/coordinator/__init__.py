"""What the coordinator decides for groups: who is in one, where parity counts as a copy, how a snapshot is rebuilt."""
