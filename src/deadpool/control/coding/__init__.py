"""What the data plane does for coded memory: sums in the slots of parities, contributions, rebuilds."""
