"""Machines that serve several jobs: whose a machine is, what it does while it is parked, and pools of such machines
(rule 31, one job per machine)."""
