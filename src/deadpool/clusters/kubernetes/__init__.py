"""A job on Kubernetes: the objects it consists of, what its coordinators tell the API server, and the operator."""
