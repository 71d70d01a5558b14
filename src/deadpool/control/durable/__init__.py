"""The shells' part of durable checkpoints: files on the nodes, and which checkpoint a coordinator begins from."""
