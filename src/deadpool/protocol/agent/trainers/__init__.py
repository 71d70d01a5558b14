"""A node's trainers: which seat each has, what it reports, how it comes to rest and ends."""
