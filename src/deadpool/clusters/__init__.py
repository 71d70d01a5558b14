"""One folder per engine that starts jobs on several machines. None of them needs torch."""
