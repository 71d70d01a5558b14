"""Optional features: a folder for each, with all of its decisions. The cores call them only through the seams that
`coordinator/seams.py`, `agent/seams.py` and `coordinator/recovery/global_plan.py` name; `registry.py` says which there
are. Without a feature's folder and its lines there, the cores do without it."""
