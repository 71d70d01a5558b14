"""Training scripts that nobody here wrote by hand: drawn from a seed, run unprotected, protected and hit."""
