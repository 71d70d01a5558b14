"""Draws a fault and its recovery as an SVG from a run's events: step times around it, and a timeline of its phases."""
