"""What a schema can cost, worked out once at registration.

A validator may look at one value many times: each branch of anyOf looks again, and branches inside
branches multiply, most of all when a schema refers to itself. For a value d levels deep the number of
looks along one path from the root is

    looks(s, 0) = here(s)
    looks(s, d) = here(s) + max over members m of sum(times(s, m, c) * looks(c, d - 1))

where here(s) counts the subschemas that apply to the same value as s (through allOf, anyOf, oneOf, not,
if/then/else, dependent schemas and references) and times(s, m, c) how often subschema c applies to member
m. Items of an array and members of an object exclude each other, so the larger counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

MOST = 10**9
"""Where counting stops: everything above is equally hopeless."""

MAX_CHAIN = 64
"""Subschemas that may lead to one another for the same value, by reference or as alternatives."""

REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_DATA = frozenset({"enum", "const", "default", "example", "examples", "required", "$vocabulary"})
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_HERE_LISTS = ("allOf", "anyOf", "oneOf")
_HERE = ("not", "if", "then", "else")
_HERE_MAPS = ("dependentSchemas", "dependencies")
_ANY_MEMBER = ("additionalProperties", "unevaluatedProperties")
_ITEMS = ("items", "additionalItems", "unevaluatedItems", "contains", "prefixItems")

Node = Mapping[str, Any]


class SchemaRefused(ValueError):
    """The schema cannot be registered; the text names the place in it and the bound."""


@dataclass(slots=True)
class _Flat:
    """Everything that applies to one value, and what applies to its members (node id -> times)."""

    here: int = 1
    chain: int = 1
    named: dict[str, Counter[int]] = field(default_factory=dict)
    any_member: Counter[int] = field(default_factory=Counter)
    items: Counter[int] = field(default_factory=Counter)

    def add(self, other: _Flat) -> None:
        self.here = min(self.here + other.here, MOST)
        self.chain = max(self.chain, other.chain + 1)
        for name, times in other.named.items():
            self.named.setdefault(name, Counter()).update(times)
        self.any_member.update(other.any_member)
        self.items.update(other.items)

    def members(self) -> Iterator[int]:
        """Yield the ids of the nodes that apply to members."""
        for times in (*self.named.values(), self.any_member, self.items):
            yield from times


def subschemas(schema: Node) -> Iterator[tuple[str, Node]]:
    """Yield every schema object inside `schema`, itself included, with its JSON Pointer.

    Objects under unknown keywords count as schemas too: a reference may lead there.
    """
    pending: list[tuple[str, Any]] = [("", schema)]
    while pending:
        place, node = pending.pop()
        if isinstance(node, list):
            pending.extend((f"{place}/{index}", child) for index, child in enumerate(node))
        elif isinstance(node, dict):
            yield place, node
            for keyword, value in node.items():
                if keyword in _DATA:
                    continue
                if keyword in _MAPS and isinstance(value, dict):
                    pending.extend(
                        (f"{place}/{keyword}/{_escape(name)}", child) for name, child in value.items()
                    )
                else:
                    pending.append((f"{place}/{_escape(keyword)}", value))


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


class SchemaCost:
    """Counts looks over one schema whose references are all local; raises SchemaRefused on a bad one."""

    def __init__(self, schema: Node) -> None:
        self._nodes: dict[int, Node] = {}
        self._anchors: dict[str, Node] = {}
        self._flat: dict[int, _Flat] = {}
        self._looks: dict[tuple[int, int], int] = {}
        self._root = schema
        for _, node in subschemas(schema):
            self._nodes[id(node)] = node
            for anchor in ("$anchor", "$dynamicAnchor"):
                if isinstance(node.get(anchor), str):
                    self._anchors[node[anchor]] = node

    def here(self) -> int:
        """Return the largest number of subschemas that apply to one and the same value."""
        return max(self._flatten(node, ()).here for node in self._nodes.values())

    def looks(self, depth: int) -> int:
        """Return the looks along one path of a value `depth` levels deep below the root, at most MOST."""
        return self._count(id(self._root), depth)

    def looks_to(self, most: int) -> tuple[int, ...]:
        """Return `looks` of every depth from 0 to `most`."""
        levels = self._levels(most)
        looks = [self.looks(depth) for depth in range(levels + 1)]
        return (*looks, *[looks[-1]] * (most - levels))

    def _levels(self, most: int) -> int:
        """Count the levels of members that the schema looks at, up to `most`."""
        layer = {id(self._root)}
        for level in range(most + 1):
            flats = [self._flatten(self._nodes[node], ()) for node in layer]
            layer = {child for flat in flats for child in flat.members()}
            if not layer:
                return level
        return most

    def _count(self, node: int, depth: int) -> int:
        known = self._looks.get((node, depth))
        if known is not None:
            return known
        flat = self._flatten(self._nodes[node], ())
        total = flat.here
        if depth:
            any_member = self._sum(flat.any_member, depth)
            members = [self._sum(times, depth) for times in flat.named.values()]
            deeper = max([*members, 0]) + any_member
            total += max(deeper, self._sum(flat.items, depth))
        self._looks[node, depth] = min(total, MOST)
        return self._looks[node, depth]

    def _sum(self, times: Counter[int], depth: int) -> int:
        return sum(count * self._count(child, depth - 1) for child, count in times.items())

    def _flatten(self, node: Node, above: tuple[int, ...]) -> _Flat:
        """Collect what applies to the same value as `node`; `above` holds the nodes being collected."""
        known = self._flat.get(id(node))
        if known is not None:
            return known
        if id(node) in above:
            raise SchemaRefused("a reference leads back to itself without going deeper into the value")
        if len(above) > MAX_CHAIN:
            raise SchemaRefused(f"more than {MAX_CHAIN} subschemas lead to one another for the same value")
        flat = _Flat()
        for child in self._beside(node):
            flat.add(self._flatten(child, (*above, id(node))))
        for name, child in _schemas_in_map(node, "properties"):
            flat.named.setdefault(name, Counter())[id(child)] += 1
        for _, child in _schemas_in_map(node, "patternProperties"):
            flat.any_member[id(child)] += 1
        for keyword in _ANY_MEMBER:
            flat.any_member.update(id(child) for child in _schemas_at(node, keyword))
        for keyword in _ITEMS:
            flat.items.update(id(child) for child in _schemas_at(node, keyword))
        if flat.chain > MAX_CHAIN:
            raise SchemaRefused(f"more than {MAX_CHAIN} subschemas lead to one another for the same value")
        self._flat[id(node)] = flat
        return flat

    def _beside(self, node: Node) -> Iterator[Node]:
        for keyword in (*_HERE_LISTS, *_HERE):
            yield from _schemas_at(node, keyword)
        for keyword in _HERE_MAPS:
            for _, child in _schemas_in_map(node, keyword):
                yield child
        for keyword in REFERENCES:
            target = node.get(keyword)
            if isinstance(target, str) and isinstance(found := self._resolve(target), dict):
                yield found

    def _resolve(self, reference: str) -> Node | bool:
        name = unquote(reference.removeprefix("#"))
        found: Any = self._root if not name.startswith("/") else _follow(self._root, name)
        if name and not name.startswith("/"):
            found = self._anchors.get(name)
        if isinstance(found, bool) or id(found) in self._nodes:
            return found  # type: ignore[no-any-return]
        raise SchemaRefused(f"{reference[:100]!r} refers to no schema inside this one")


def _follow(document: Any, place: str) -> Any:
    for part in place.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        try:
            document = document[int(name)] if isinstance(document, list) else document[name]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return document


def _schemas_at(node: Node, keyword: str) -> list[Node]:
    value = node.get(keyword)
    if isinstance(value, dict):
        return [value]
    return [child for child in value if isinstance(child, dict)] if isinstance(value, list) else []


def _schemas_in_map(node: Node, keyword: str) -> list[tuple[str, Node]]:
    value = node.get(keyword)
    if not isinstance(value, dict):
        return []
    return [(name, child) for name, child in value.items() if isinstance(child, dict)]
