"""Jobs without a scheduler: `deadpool ssh` starts coordinators and agents over OpenSSH.

On the machine of the user:  launcher.py (the job) with one host.py per machine, each with a connection.py (ssh).
On each machine:             session.py lives as long as one ssh connection, daemon.py as long as the job.
"""
