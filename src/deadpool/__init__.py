"""DeadPool keeps a PyTorch training job running when machines die."""
