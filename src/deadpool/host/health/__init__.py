"""What a node's kernel, memory, network cards and GPUs say of their health. `deadpool doctor` and agents read it.

Every file is read below a root folder, which is / on a real node. What a figure means is decided in
`protocol/health.py`.
"""
