"""The two kinds of values that travel between processes: messages, and the values inside them.

Both are msgspec Structs, because msgspec then checks every field of what arrives against its declared type while it
reads the bytes, and makes nothing else from them (wire/codec.py). On the wire a value is the list of its fields in the
order in which the class names them; a message puts its class name before them. Values are immutable, as everything is
that two processes or two cores share. `msgspec.structs.replace` makes a changed one.

The garbage collector does not look at values (`gc=False`): what is immutable from the start is part of no cycle, and a
coordinator of thousands of nodes keeps a million of them.
"""

from __future__ import annotations

import msgspec


class Value(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A value that travels inside messages only: the field that holds it says which class it is."""


class Message(Value, frozen=True, tag=True):
    """A value that is sent by itself: its class name travels with it, since the receiver cannot know what comes."""


class FeatureMessage(Message, frozen=True):
    """A message that only an optional feature has a use for. Cores hand it to the features, and nothing follows where
    that feature is missing."""


class FreeFormMessage(Message, frozen=True):
    """A message with fields that declare `Any`. The codec checks that they hold plain values all the way down: None,
    bool, int, float, str, bytes, and lists and dicts of them."""
