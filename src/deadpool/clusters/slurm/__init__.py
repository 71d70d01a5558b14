"""Jobs under Slurm: how one is submitted, what runs on each node of its allocation, and how lost nodes are replaced.

`submit` writes the batch script (`batch_script`). The batch host runs `batch`, which starts one `node` per node by
srun. On the nodes that have a coordinator, a `watch` asks for new spares, drains nodes that administrators take out,
and sees the time limit coming. All of them meet in the run folder (`run_folder`), which all nodes share.
"""
