"""How a version comes into a slot while the next step runs, and what that costs."""
