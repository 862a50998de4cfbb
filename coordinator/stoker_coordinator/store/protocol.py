"""The store as everybody else knows it. SQLite and memory have it today; etcd and the Kubernetes API can have it.

- Objects are frozen values. What `get`, `list` and `watch` hand out is shared: make changed copies of it.
- Every change has a revision, one number for the whole store; an object's ``metadata.resource_version`` is the revision
  of its last change. An update whose object carries a resource version is refused with Conflict when the kept one has
  another; without one, the last writer wins.
- `update` and `patch` change metadata and spec and leave the status alone; with ``status=True`` they change the status
  and leave the rest alone. A change of the spec makes ``generation`` grow. What changes nothing writes nothing, and
  returns the object as it is.
- A write has returned when it is durable. Cancelling a caller does not take its write back.
- Whoever watches from the revision of a list misses nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar

from msgspec import Struct

from stoker.objects.meta import Object
from stoker_coordinator.objects.selectors import ANY_FIELDS, EVERYTHING, FieldSelector, Selector

T = TypeVar("T", bound=Object)

EventType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]


class Page(Struct, Generic[T], frozen=True):
    """Some of the objects that there were at one moment, by namespace and name."""

    items: tuple[T, ...]
    revision: int
    """Of that moment. All pages of one list have the same; watch from here."""
    token: str = ""
    """Where the next page begins; empty: this is the last one."""
    remaining: int = 0
    """So many objects are on later pages."""


class Event(Struct, Generic[T], frozen=True):
    """One change. An object that begins to match what is watched for is ADDED, one that ceases to is DELETED."""

    type: EventType
    revision: int
    object: T | None = None
    """As it is now; as it was last, when it is DELETED; None in a BOOKMARK, which says that nothing else happened until
    this revision."""
    old: T | None = None
    """As it was before."""


class Store(Protocol):
    """Keeps objects."""

    @property
    def revision(self) -> int:
        """The revision of the last change."""
        ...

    async def get(self, kind: type[T], name: str, namespace: str = "") -> T:
        """Return an object; NotFound."""
        ...

    async def find(self, kind: type[T], name: str, namespace: str = "") -> T | None:
        """Return an object, None when there is none."""
        ...

    async def list(
        self,
        kind: type[T],
        *,
        namespace: str | None = None,
        labels: Selector = EVERYTHING,
        fields: FieldSelector = ANY_FIELDS,
        limit: int = 0,
        token: str = "",
    ) -> Page[T]:
        """Return the objects that are meant; *namespace* None: of all, *limit* 0: on one page.

        *token*: of the page before. Expired: the moment of the first page is too long ago. Invalid: no such token.
        """
        ...

    async def create(self, obj: T, *, dry_run: bool = False) -> T:
        """Keep a new object and return it as it is kept. AlreadyExists, Invalid, TooLarge.

        uid, times, generation and resource version are the store's to give; the status is kept as it is given.
        *dry_run*, here and below: check everything and return what would be, and write nothing.
        """
        ...

    async def update(self, obj: T, *, status: bool = False, dry_run: bool = False) -> T:
        """Replace metadata (labels, annotations, finalizers, owners) and spec, or the status. NotFound, Conflict,
        TooLarge.

        An object that is being deleted goes when its last finalizer does: it is returned as it was last.
        """
        ...

    async def patch(
        self,
        kind: type[T],
        name: str,
        namespace: str = "",
        *,
        patch: Mapping[str, Any],
        status: bool = False,
        dry_run: bool = False,
    ) -> T:
        """Merge *patch* (RFC 7386) into the object as it is now. NotFound, Invalid, TooLarge; Conflict only when the
        patch has a resource version."""
        ...

    async def change(
        self,
        kind: type[T],
        name: str,
        namespace: str = "",
        *,
        change: Callable[[T], T],
        status: bool = False,
        dry_run: bool = False,
    ) -> T:
        """Put what *change* makes of the object in its place, whatever happens at the same time. NotFound, TooLarge.

        *change* is pure and quick, and may be called more than once; what it raises comes out. Conflict only when it
        returns another resource version than it was given.
        """
        ...

    async def delete(
        self, kind: type[T], name: str, namespace: str = "", *, uid: str = "", revision: int = 0, dry_run: bool = False
    ) -> T:
        """Remove an object, or mark it as to go while it has finalizers; return it as it is then. NotFound; Conflict
        when it has another *uid* or *revision* than the given one.

        Objects that it owns go after it.
        """
        ...

    def watch(
        self,
        kinds: Sequence[type[Object]],
        *,
        since: int,
        namespace: str | None = None,
        labels: Selector = EVERYTHING,
        fields: FieldSelector = ANY_FIELDS,
        bookmarks: float = 0.0,
    ) -> AsyncGenerator[Event[Any], None]:
        """Yield every change after revision *since*, in order, for ever. No *kinds*: all.

        *bookmarks*: a BOOKMARK after so many seconds in which nothing was yielded; 0: none. Expired, at once or
        later: this watcher is further behind than the history goes; list anew. StoreClosed: the store is closing.
        Close the iterator (`contextlib.aclosing`) when done.
        """
        ...
