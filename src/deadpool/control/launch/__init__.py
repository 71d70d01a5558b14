"""A whole job on one machine: its run folder, its processes, and what is looked for before and after."""
