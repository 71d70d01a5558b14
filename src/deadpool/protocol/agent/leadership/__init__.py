"""A node's dealings with coordinators: which one it follows, and what it tells each."""
