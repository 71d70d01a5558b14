"""The way back after a fault, and the rehearsal of a spare, on the script's thread."""
