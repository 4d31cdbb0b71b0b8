"""Checks of shapes in tests: every function that names the shape of a tensor in its signature is held to it.

`check_shapes` wraps these functions when their module is imported, with jaxtyping and beartype. Functions
without a tensor are left as they are: there are far more calls of them, and nothing of a shape to check.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from inspect import isfunction
from types import ModuleType
from typing import Any, get_args, get_type_hints

from beartype import beartype
from jaxtyping import AbstractArray, jaxtyped


def check_shapes(modules: Iterable[str]) -> None:
    """Hold the functions of these modules to the shapes in their signatures, from their import on."""
    sys.meta_path.insert(0, _Finder(frozenset(modules)))


class _Finder(MetaPathFinder):
    """Finds the modules to check where Python would, and lets `_Loader` load them."""

    def __init__(self, modules: frozenset[str]) -> None:
        self.modules = modules

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.modules:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Loads a module as its own loader does, and then wraps its functions."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        wrap_functions(module, module)
        for each in list(vars(module).values()):
            if isinstance(each, type) and each.__module__ == module.__name__:
                wrap_functions(each, module)


def wrap_functions(owner: ModuleType | type, module: ModuleType) -> int:
    """Wrap the functions of a module or class that name shapes, and return how many these are."""
    wrapped = 0
    for name, value in list(vars(owner).items()):
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if isinstance(value, property):
            function = value.fget
        if not isfunction(function) or function.__module__ != module.__name__:
            continue
        # What a decorator made, a context manager for one, returns something else than it says.
        if hasattr(function, "__wrapped__") or not names_a_shape(function):
            continue
        checked: Callable[..., Any] = jaxtyped(typechecker=beartype)(function)
        if isinstance(value, property):
            setattr(owner, name, property(checked, value.fset, value.fdel, value.__doc__))
        elif isinstance(value, classmethod | staticmethod):
            setattr(owner, name, type(value)(checked))
        else:
            setattr(owner, name, checked)
        wrapped += 1
    return wrapped


def names_a_shape(function: Callable[..., Any]) -> bool:
    """Whether any annotation of a function has a shape in it."""
    try:
        hints = get_type_hints(function)
    except NameError:  # a name that only type checkers import
        return False
    return any(_has_shape(hint) for hint in hints.values())


def _has_shape(hint: object) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(_has_shape(part) for part in get_args(hint))
