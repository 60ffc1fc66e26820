"""Queues that take turns: first come first served inside a lane, round robin between lanes.

Postconditions, with T lanes that hold something:
- whoever stands at the head of a lane is taken after at most T - 1 others, however fast the others refill,
  because a lane that was served goes behind all lanes that wait, and a new lane starts at the end;
- every step costs O(1), whatever the length (`longest` costs O(T)).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T", bound=Hashable)


class Queue(Protocol[T]):
    """What a lane can be: a line, or again queues that take turns."""

    size: int

    def push(self, item: T) -> None:
        """Stand at the end."""

    def push_front(self, item: T) -> None:
        """Stand at the head."""

    def pop(self) -> T:
        """Take the next; KeyError when empty."""

    def remove(self, item: T) -> None:
        """Leave from anywhere; KeyError when absent."""


class Line(Generic[T]):
    """First come first served, with O(1) leaving from the middle."""

    __slots__ = ("_items", "size")

    def __init__(self) -> None:
        self._items: OrderedDict[T, None] = OrderedDict()
        self.size = 0

    def push(self, item: T) -> None:
        """Stand at the end."""
        self._items[item] = None
        self.size += 1

    def push_front(self, item: T) -> None:
        """Stand at the head."""
        self.push(item)
        self._items.move_to_end(item, last=False)

    def pop(self) -> T:
        """Take the one at the head; KeyError when empty."""
        item, _ = self._items.popitem(last=False)
        self.size -= 1
        return item

    def remove(self, item: T) -> None:
        """Leave from anywhere; KeyError when absent."""
        del self._items[item]
        self.size -= 1

    def newest(self) -> T:
        """The one at the end, left in place; StopIteration when empty."""
        return next(reversed(self._items))


Q = TypeVar("Q", bound=Queue[Any])


class Turns(Generic[T, Q]):
    """Round robin over lanes. key: which lane an item belongs to; lane: makes an empty one."""

    __slots__ = ("_key", "_lane", "_lanes", "size")

    def __init__(self, key: Callable[[T], Hashable], lane: Callable[[], Q]) -> None:
        self._key = key
        self._lane = lane
        self._lanes: OrderedDict[Hashable, Q] = OrderedDict()
        self.size = 0

    def push(self, item: T) -> None:
        """Stand at the end of the item's lane."""
        self._lane_of(item).push(item)
        self.size += 1

    def push_front(self, item: T) -> None:
        """Stand at the head of the item's lane; the lane keeps its turn."""
        self._lane_of(item).push_front(item)
        self.size += 1

    def pop(self) -> T:
        """Take the head of the lane whose turn it is; KeyError when empty."""
        key, lane = self._lanes.popitem(last=False)
        item: T = lane.pop()
        self.size -= 1
        if lane.size:
            self._lanes[key] = lane
        return item

    def remove(self, item: T) -> None:
        """Leave from anywhere; KeyError when absent."""
        key = self._key(item)
        lane = self._lanes[key]
        lane.remove(item)
        self.size -= 1
        if not lane.size:
            del self._lanes[key]

    def lanes(self) -> list[Q]:
        """The lanes that hold something, next turn first."""
        return list(self._lanes.values())

    def _lane_of(self, item: T) -> Q:
        key = self._key(item)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = self._lane()
        return lane
