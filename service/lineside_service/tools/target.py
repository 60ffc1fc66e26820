"""From `module:function` in a config to the function."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any


class TargetRefused(ValueError):
    """The target cannot be a tool; the text says why and, where it can, what was meant."""


def load_target(target: str) -> Callable[..., Any]:
    """Import `module:function` (or `module:object.method`); raises TargetRefused.

    A module that is already imported is not imported again: a reload changes config, not code.
    """
    module_name, colon, path = target.partition(":")
    if not colon or not module_name or not path:
        raise TargetRefused(f"target {target!r} must have the form module:function")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise TargetRefused(
            f"target {target!r}: there is no module {error.name!r} on the Python path"
        ) from error
    except Exception as error:
        raise TargetRefused(
            f"target {target!r}: importing {module_name} raised {type(error).__name__}: {error}"
        ) from error
    for name in path.split("."):
        if not hasattr(found, name):
            near = difflib.get_close_matches(name, dir(found), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TargetRefused(f"target {target!r}: {name!r} does not exist{hint}")
        found = getattr(found, name)
    require_usable(found, target)
    return found  # type: ignore[no-any-return]


def require_usable(function: Any, target: str) -> None:
    """Raise TargetRefused unless `function` is a function, method, partial or callable object."""
    if not callable(function):
        raise TargetRefused(f"target {target!r} is a {type(function).__name__}, not a function")
    if inspect.isclass(function):
        raise TargetRefused(f"target {target!r} is a class; name a function, or a method of an object")
    body = body_of(function)
    if inspect.isasyncgenfunction(body) or inspect.isgeneratorfunction(body):
        raise TargetRefused(f"target {target!r} is a generator; a tool returns one result")


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine, seen through partials and callable objects."""
    return inspect.iscoroutinefunction(body_of(function))


def body_of(function: Any) -> Any:
    """Return the function that will run: behind a partial, or an object's __call__."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return type(function).__call__.__get__(function)
