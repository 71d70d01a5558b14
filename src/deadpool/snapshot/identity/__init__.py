"""Which tensor object and which memory a parameter, buffer or gradient has: a recovery gives the same back."""
