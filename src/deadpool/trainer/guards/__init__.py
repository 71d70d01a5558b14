"""Guards that name what a script does and no recovery can make good, before the first fault. guard.py says what one
is, rules.py what they look for, guard.py what follows."""
