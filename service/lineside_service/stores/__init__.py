"""Stores remember: the ledger in memory and in SQLite, both under one conformance suite."""

from lineside_service.stores.errors import StoreOpenError
from lineside_service.stores.holds import DEFAULT_TENANT_BYTES
from lineside_service.stores.memory import MemoryStore
from lineside_service.stores.sqlite import SqliteStore, open_sqlite

__all__ = ["DEFAULT_TENANT_BYTES", "MemoryStore", "SqliteStore", "StoreOpenError", "open_sqlite"]
