"""Guards that name what a script does and no recovery can make good, before the first fault. guard.py says what one is
and what follows from what it finds, all_guards.py which there are."""
