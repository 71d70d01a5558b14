"""Kinds of scripts, a file for each thing that they are about, in the order in which they are gone through."""

from __future__ import annotations

from deadpool_lab.strangers.kind import Kind
from deadpool_lab.strangers.kinds.attributes import ATTRIBUTES, EARLY_DATA
from deadpool_lab.strangers.kinds.carried import CARRIED
from deadpool_lab.strangers.kinds.hidden import HIDDEN
from deadpool_lab.strangers.kinds.later import LATER
from deadpool_lab.strangers.kinds.odd_tensors import ODD_TENSORS
from deadpool_lab.strangers.kinds.own_updates import OWN_UPDATES
from deadpool_lab.strangers.kinds.replaced import ASSIGNED_BUFFERS, REPLACED
from deadpool_lab.strangers.kinds.surroundings import SURROUNDINGS
from deadpool_lab.strangers.kinds.uncounted import GRADIENTS, UNCOUNTED

KINDS: tuple[Kind, ...] = (
    *GRADIENTS,
    *UNCOUNTED,
    *REPLACED,
    *ATTRIBUTES,
    *ASSIGNED_BUFFERS,
    *EARLY_DATA,
    *SURROUNDINGS,
    *ODD_TENSORS,
    *CARRIED,
    *HIDDEN,
    *OWN_UPDATES,
    *LATER,
)
