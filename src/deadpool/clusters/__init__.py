"""One folder per engine that starts jobs on a cluster: it starts agents, gets spares and maps signals to drains."""
