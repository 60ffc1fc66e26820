"""What the service's source says about the tokens that callers see: read from its syntax, never imported.

A token is an UPPER_SNAKE text. It is found twice: by the parameter it is given for (`reason`, `rule`), and
as any constant at all, so that one which takes another way is found too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = "lineside_service"
_LEVELS = ("debug", "info", "warning", "error", "critical", "exception")
TOKEN = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*")
_Callee = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(slots=True)
class Tokens:
    """What was found. kinds: by reason, the kinds it is made with, as far as they are constant."""

    constants: set[str] = field(default_factory=set)
    reasons: set[str] = field(default_factory=set)
    decisions: set[tuple[str, str]] = field(default_factory=set)
    rules: set[str] = field(default_factory=set)
    kinds: dict[str, set[str]] = field(default_factory=dict)


def tokens_of(root: Path, parts: Sequence[str]) -> Tokens:
    """The tokens in `root/part/**` for each part of the package."""
    modules = _modules(root)
    found = Tokens()
    for name, tree in modules.items():
        if name.split(".")[1:2] and name.split(".")[1] in parts:
            _Reader(name, tree, modules, found).read()
    return found


@dataclass(slots=True)
class Event:
    """A line of the log: the levels it comes at, and the names of the fields that are given by name."""

    levels: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)


def logged_events(root: Path) -> Mapping[str, Event]:
    """By event name, every call such as `log.warning("event", …)` in the package."""
    events: dict[str, Event] = {}
    for tree in _modules(root).values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (said := _logged(node)) is not None:
                event, level = said
                known = events.setdefault(event, Event())
                known.levels.add(level)
                known.fields |= {word.arg for word in node.keywords if word.arg is not None}
    return events


def _logged(call: ast.Call) -> tuple[str, str] | None:
    """Event and level, None for any other call."""
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr not in _LEVELS or not call.args:
        return None
    event = call.args[0]
    is_log = "log" in ast.unparse(function.value).lower()
    return (str(event.value), function.attr) if is_log and isinstance(event, ast.Constant) else None


def _modules(root: Path) -> dict[str, ast.Module]:
    return {
        _name_of(path.relative_to(root)): ast.parse(path.read_text()) for path in sorted(root.rglob("*.py"))
    }


def _name_of(path: Path) -> str:
    return ".".join((PACKAGE, *path.with_suffix("").parts)).removesuffix(".__init__")


class _Reader:
    """Reads one module."""

    def __init__(self, name: str, tree: ast.Module, modules: Mapping[str, ast.Module], found: Tokens) -> None:
        self._tree = tree
        self._modules = modules
        self._found = found
        self._callees: dict[str, _Callee] = {}
        self._aliases: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                self._import(node)
        self._callees |= _defined(tree)
        # Only core's own rules make decisions; elsewhere a reason is what a caller is told.
        self._decides = name.startswith(f"{PACKAGE}.core.") and "Decision" in self._callees

    def read(self) -> None:
        """Add what the module says to the tokens."""
        docstrings = {id(text) for text in _docstrings(self._tree)}
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Constant) and id(node) not in docstrings:
                self._found.constants |= _tokens_in(node)
            elif isinstance(node, ast.Call):
                self._read_call(node)

    def _import(self, node: ast.ImportFrom) -> None:
        module = self._modules.get(node.module or "")
        for alias in node.names:
            self._aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            if module is not None and alias.name in (defined := _defined(module)):
                self._callees[alias.asname or alias.name] = defined[alias.name]

    def _read_call(self, call: ast.Call) -> None:
        callee, name = self._callee_of(call.func)
        given = dict(_bound(call, callee)) | {word.arg: word.value for word in call.keywords if word.arg}
        reasons = _tokens_in(given.get("reason"))
        self._found.rules |= _tokens_in(given.get("rule"))
        if name == "Decision" or self._decides:
            choice = given.get("choice")
            said = str(choice.value) if isinstance(choice, ast.Constant) else ""
            self._found.decisions |= {(said, reason) for reason in reasons}
            return
        kind = _kind_in(given.get("kind"))
        if kind and not given.get("reason"):
            reasons = {kind}
        self._found.reasons |= reasons
        for reason in reasons if kind else ():
            self._found.kinds.setdefault(reason, set()).add(kind)

    def _callee_of(self, function: ast.expr) -> tuple[_Callee | None, str]:
        if isinstance(function, ast.Name):
            return self._callees.get(function.id), function.id
        if isinstance(function, ast.Attribute):
            owner = self._aliases.get(function.value.id) if isinstance(function.value, ast.Name) else None
            if owner is not None and owner in self._modules:
                return _defined(self._modules[owner]).get(function.attr), function.attr
            return self._callees.get(function.attr), function.attr
        return None, ""


def _defined(tree: ast.Module) -> dict[str, _Callee]:
    """Everything that a module defines, methods by their bare name."""
    return {node.name: node for node in ast.walk(tree) if isinstance(node, _Callee)}


def _bound(call: ast.Call, callee: _Callee | None) -> Iterator[tuple[str, ast.expr]]:
    yield from zip(_parameters(callee), call.args, strict=False)


def _parameters(callee: _Callee | None) -> list[str]:
    if callee is None:
        return []
    if isinstance(callee, ast.ClassDef):
        init = next((n for n in callee.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
        if init is not None:
            return _parameters(init)
        members = (node.target for node in callee.body if isinstance(node, ast.AnnAssign))
        return [member.id for member in members if isinstance(member, ast.Name)]
    names = [argument.arg for argument in (*callee.args.posonlyargs, *callee.args.args)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def _tokens_in(value: ast.expr | None) -> set[str]:
    """The tokens that an expression can be."""
    if isinstance(value, ast.IfExp):
        return _tokens_in(value.body) | _tokens_in(value.orelse)
    if isinstance(value, ast.Constant) and isinstance(value.value, str) and TOKEN.fullmatch(value.value):
        return {value.value}
    return set()


def _kind_in(value: ast.expr | None) -> str:
    """The name of a constant kind, empty for any other expression."""
    if value is None or not isinstance(value, ast.Attribute):
        return ""
    return value.attr if ast.unparse(value.value) == "ErrorKind" else ""


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Constant):
                yield inner.value
