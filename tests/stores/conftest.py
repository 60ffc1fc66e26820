"""Stores to test: each made fresh, real files in the test's own directory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from lineside_service.stores import MemoryStore, SqliteStore, open_sqlite
from tests.stores.rows import HERE

Store = MemoryStore | SqliteStore
Opener = Callable[..., Awaitable[SqliteStore]]


@pytest_asyncio.fixture
async def open_store(tmp_path: Path) -> AsyncIterator[Opener]:
    """Opens SQLite stores, by default at one path, and closes what the test left open."""
    opened: list[SqliteStore] = []

    async def opener(
        path: Path = tmp_path / "ledger.db", incarnation: str = HERE, **options: object
    ) -> SqliteStore:
        store = await open_sqlite(path, incarnation=incarnation, **options)  # type: ignore[arg-type]
        opened.append(store)
        return store

    yield opener
    for store in opened:
        await store.close()


@pytest_asyncio.fixture
async def sqlite(open_store: Opener) -> SqliteStore:
    """One open SQLite store."""
    return await open_store()


@pytest_asyncio.fixture(params=["memory", "sqlite"])
async def make_store(request: pytest.FixtureRequest, open_store: Opener) -> Callable[..., Awaitable[Store]]:
    """Makes a store of either kind; keyword: tenant_bytes_limit."""

    async def make(**options: int) -> Store:
        if request.param == "memory":
            return MemoryStore(member_secret=bytes(32), **options)
        return await open_store(**options)

    return make


@pytest_asyncio.fixture
async def store(make_store: Callable[..., Awaitable[Store]]) -> Store:
    """A store of either kind with the default bound."""
    return await make_store()
