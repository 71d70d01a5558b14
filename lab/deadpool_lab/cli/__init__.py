"""Commands of the lab. `deadpool` finds them by the entry points in lab/pyproject.toml."""
