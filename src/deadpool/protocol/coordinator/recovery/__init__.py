"""The way from a fault over the fence and the plan to the first step after it."""
