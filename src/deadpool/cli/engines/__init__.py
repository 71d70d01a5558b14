"""Commands that start a job through an engine: Slurm, ssh, Kubernetes, a pool of machines."""
