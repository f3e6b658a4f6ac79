"""Replace functions of torch by functions that call a hook, until the patches are undone."""

import functools
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

Hook = Callable[..., Any]  # hook(original, *args, **kwargs) calls the original


class Patches(ExitStack):
    """Patches that leaving the context undoes.

    A function that calls another one of its kind, as a subclass calls its base, calls the hook
    once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._running: set[str] = set()

    def function(self, owner: Any, name: str, kind: str, hook: Hook) -> None:
        """Replace a function of a class or a module, if the class itself defines it."""
        original = vars(owner).get(name)
        if not callable(original) or hasattr(original, "_ampsim_hook"):
            return

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if kind in self._running:
                return original(*args, **kwargs)
            with self._marking(kind):
                return hook(original, *args, **kwargs)

        wrapper._ampsim_hook = hook  # type: ignore[attr-defined]
        self.attribute(owner, name, wrapper)

    def everywhere(self, function: Any, kind: str, hook: Hook) -> None:
        """Replace a function in each module that has it, as after ``from torch import save``."""
        modules = [
            each for each in sys.modules.values() if isinstance(each, ModuleType)
        ]
        for module in modules:
            names = [name for name, value in vars(module).items() if value is function]
            for name in names:
                self.function(module, name, kind, hook)

    def item_everywhere(self, old: object, new: object) -> None:
        """Replace an object in each dictionary that holds it, as a module's, or a table of
        functions.
        """
        for holder in gc.get_referrers(old):
            names = (
                [key for key, value in holder.items() if value is old]
                if isinstance(holder, dict)
                else []
            )
            for name in names:
                self.callback(holder.__setitem__, name, old)
                holder[name] = new

    def family(self, base: type[Any], patch: Callable[[type[Any]], None]) -> None:
        """Patch a class, its subclasses, and the subclasses that are defined later."""
        patch(base)
        for child in base.__subclasses__():
            self.family(child, patch)
        if "__init_subclass__" not in vars(base):

            def init_subclass(cls: type[Any], /, **kwargs: Any) -> None:
                super(base, cls).__init_subclass__(**kwargs)
                patch(cls)

            self.attribute(base, "__init_subclass__", classmethod(init_subclass))

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute; leaving the context sets it back."""
        if name in vars(owner):
            self.callback(setattr, owner, name, vars(owner)[name])
        else:
            self.callback(delattr, owner, name)
        setattr(owner, name, value)

    @contextmanager
    def _marking(self, kind: str) -> Iterator[None]:
        self._running.add(kind)
        try:
            yield
        finally:
            self._running.discard(kind)
