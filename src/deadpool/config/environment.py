"""The names of all environment variables that DeadPool reads or sets, in one place."""

from __future__ import annotations

PREFIX = "DEADPOOL_"
"""A setting of JobConfig can be given as PREFIX and its name in capitals, e.g. DEADPOOL_NODES."""

SECRET_VARIABLE = PREFIX + "SECRET"
"""The job's secret itself. A file is safer: other users may see a process's environment."""
SECRET_FILE_VARIABLE = PREFIX + "SECRET_FILE"
"""A file that holds the job's secret."""
TLS_VARIABLE = PREFIX + "TLS"
"""How connections are encrypted, as --tls says; children of an agent take it from here."""

DEBUG_VARIABLE = PREFIX + "DEBUG"
"""Set by `deadpool --debug`: errors that have a sentence end in a traceback all the same."""
LOOKED_AT_VARIABLE = PREFIX + "LOOKED_AT"
"""Set by a command that has looked for misspelt variables, for those that it starts."""

AGENT_VARIABLE = PREFIX + "AGENT"
"""Set for trainers: the name of the socket that their agent listens on."""
TRAINER_VARIABLE = PREFIX + "TRAINER"
"""Set for trainers: their own name."""
HOST_VARIABLE = PREFIX + "HOST"
"""Set for trainers: the address that peers reach this node at."""
RENDEZVOUS_VARIABLE = PREFIX + "RENDEZVOUS"
"""Set for trainers: HOST:PORT of their node's key-value store."""
JOURNAL_VARIABLE = PREFIX + "JOURNAL"
"""Set for trainers: the folder that job.log writes to."""

CODE_FOLDERS_VARIABLE = PREFIX + "CODE_FOLDERS"
"""Set for trainers: where torch.compile and Triton keep what they have compiled."""

FIRST_START_VARIABLE = PREFIX + "FIRST_START"
"""Set for trainers: 1 in the very first process of a rank, else 0; `deadpool.first_start` reads it."""

PARKED_PREFIX = PREFIX + "PARKED_"
"""Set for the command of --while-parked: PARKED_NODE, PARKED_LOGS (a folder) and PARKED_START (how often it was
started)."""

PARKED_STATE_VARIABLE = PREFIX + "PARKED_STATE"
"""Set for trainers: what a parked one does with the memory of its state, as --parked-state says."""

SLURM_OPTIONS_VARIABLE = PREFIX + "SLURM_OPTIONS"
"""Set in batch scripts: the options of sbatch that jobs which bring new spares get too."""
NOTICE_VARIABLE = PREFIX + "NOTICE"
"""Set for trainers where a cluster may take a whole job away: a file that appears when that is announced."""


def variable_of(setting: str) -> str:
    return PREFIX + setting.upper()
