"""Children of these tests are forked from a process that has torch loaded already."""

from backend_fleet import start_forkserver

start_forkserver()
