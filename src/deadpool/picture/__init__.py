"""A fault and its recovery as an SVG, drawn from a run's events: step times around it, its phases as a timeline."""
