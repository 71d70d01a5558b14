"""Children of these tests are forked from a process that has torch loaded already."""

import os

from backend_fleet import start_forkserver

# torch looks up the name of each peer that a TCPStore talks to; a lost answer of the name server costs 5 s.
os.environ["RES_OPTIONS"] = "attempts:0"
start_forkserver()
