"""Methods of the user's own objects that report to a listener: wrapped in their class while somebody watches."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from limpid.doctor.loop_listener import LoopListener


class Entry(NamedTuple):
    """One object whose method is watched: who is told which event before it and after it."""

    owner: weakref.ref[Any]
    listener: weakref.ref[LoopListener]
    before: str
    after: str


class WrappedMethod:
    """A method, wrapped in its class as long as one of its objects is watched; nothing is kept alive by it."""

    def __init__(self, place: Any, name: str) -> None:
        self.place, self.name = place, name
        self.own, self.original = name in vars(place), getattr(place, name)
        self.entries: list[Entry] = []
        original = self.original

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            owner = args[0] if isinstance(place, type) and args else place
            self.tell(owner, "before")
            result = original(*args, **kwargs)
            self.tell(owner, "after")
            if name == "step" and (args[1:] or kwargs):
                self.measured(owner, [*args[1:], *kwargs.values()][0])
            return result

        setattr(place, name, wrapped)

    def tell(self, owner: Any, when: Literal["before", "after"]) -> None:
        """Tell those who watch this object what happens."""
        for entry in self.entries:
            listener, event = entry.listener(), entry.before if when == "before" else entry.after
            if entry.owner() is not owner or listener is None or not event:
                continue
            match event:
                case "begins":
                    listener.on_update_begins(owner)
                case "ends":
                    listener.on_update_ended(owner)
                case _:
                    listener.on_event(event)

    def measured(self, owner: Any, value: Any) -> None:
        """Tell those who watch a schedule what it is told."""
        for entry in self.entries:
            listener = entry.listener()
            if entry.owner() is owner and listener is not None and entry.after == "schedule":
                listener.on_measure(value)

    def remove(self, entry: Entry) -> None:
        self.entries[:] = [e for e in self.entries if e is not entry and e.owner() is not None]
        if not self.entries and self in _methods:
            _methods.remove(self)
            setattr(self.place, self.name, self.original) if self.own else delattr(self.place, self.name)


_methods: list[WrappedMethod] = []


def around(owner: Any, name: str, listener: LoopListener, before: str = "", after: str = "") -> Callable[[], None]:
    """Report one method of one object before and after it runs, until what is returned is called.

    It is wrapped in the object's class: an attribute of the object would be saved with it, in its state_dict.
    """
    place: Any = owner if name in getattr(owner, "__dict__", {}) else type(owner)
    if not hasattr(place, name):
        return lambda: None
    method = next((m for m in _methods if m.place is place and m.name == name), None)
    if method is None:
        method = WrappedMethod(place, name)
        _methods.append(method)
    entry = Entry(weakref.ref(owner), weakref.ref(listener), before, after)
    method.entries.append(entry)
    return lambda: method.remove(entry)
