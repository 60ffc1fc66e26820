"""Why a store could not be opened."""

from __future__ import annotations


class StoreOpenError(Exception):
    """A store cannot be used as it is. The text says what is wrong, where, and what to do about it."""
