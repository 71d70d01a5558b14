"""Which ranks are carried by which, and when they get nodes of their own again."""
