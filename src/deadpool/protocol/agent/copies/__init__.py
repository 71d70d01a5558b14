"""A node's copies: slots, pushes to holders, arrivals, parities, and what captures cost."""
