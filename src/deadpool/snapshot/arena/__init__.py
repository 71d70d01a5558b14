"""Host memory for snapshots: its slots, the seals and checksums of what lies in them. No torch."""
