"""The bytes of everything that is no bulk, and the description of where each tensor lies."""
