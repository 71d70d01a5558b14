"""Committed versions on disk or in an object store, as torch.distributed.checkpoint plus what exact resumption needs.

    PATH/step-000000200-JOB-g1.3-1.2/     one checkpoint: its step, its job, its generation, the term and the attempt
        __0_0.distcp __1_0.distcp ...     tensors, each byte once: replicas share the work
        .metadata                         plain torch reads these two kinds of files
        deadpool/rank-0.record            the boundary record of a rank
        deadpool/rank-0.recording         what small collectives gave it before its loop
        deadpool/rank-0.part              which tensors it has, and where their bytes are
        manifest.json                     written last: names, sizes and checksums of all files, and every rank's seal

A folder without a readable manifest is no checkpoint. `store`, `manifest`, `shards`, `retention` and `reading` need no
torch, and run in coordinators and agents; `part_file`, `metadata` and `writer` run in a process of their own. `export`
makes files for other readers.
"""
