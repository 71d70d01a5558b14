"""Coded memory: nodes keep parity of the snapshots of a group, and not whole copies (rule 27, parity counts when it is
whole)."""
