"""Settings: each is declared once, with its flag, its environment variable, its check and its section."""
