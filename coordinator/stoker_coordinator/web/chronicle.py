"""What has happened lately, told from how objects change."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime

from msgspec import Struct

from stoker.objects.cluster_clones import Clone
from stoker.objects.cluster_images import ImageListPullJob, ImagePullJob
from stoker.objects.cluster_nodes import HyperNode, Node
from stoker.objects.cluster_requests import Checkpoint, Commit, ContainerRecreateRequest
from stoker.objects.meta import Object
from stoker_coordinator.web import views
from stoker_coordinator.web.views import Mood

MOST = 500


class Entry(Struct, frozen=True):
    """One thing that happened."""

    at: datetime
    mood: Mood
    subject: str
    text: str
    link: str = ""


def entries(old: Object | None, new: Object | None, now: datetime) -> Iterator[Entry]:
    """Yield what a change of an object means to people; most changes mean nothing. Pure."""
    match new if new is not None else old:
        case Node() as node:
            yield from _of_node(old if isinstance(old, Node) else None, node, now, gone=new is None)
        case ImagePullJob() | ImageListPullJob() as job if new is not None:
            state = views.job_state(job)
            before = views.job_state(old) if isinstance(old, ImagePullJob | ImageListPullJob) else None
            if before is None or (before.word != state.word and state.word in {"Complete", "Partly", "Failed"}):
                text = state.why if before is not None else "was asked for"
                link = f"/ui/jobs/{job.kind}/{job.metadata.namespace}/{job.metadata.name}"
                yield Entry(now, state.mood, str(job.key), text, link)
        case ContainerRecreateRequest() | Checkpoint() | Commit() | Clone() as request if new is not None:
            row = views.request_row(request)
            known = isinstance(old, ContainerRecreateRequest | Checkpoint | Commit | Clone)
            was = views.request_row(old).state.word if known else ""  # type: ignore[arg-type]
            if was != row.state.word:
                where = f" on {row.node}" if row.node else ""
                what = "of" if isinstance(request, Clone) else "for pod"
                text = f"{row.state.word} {what} {row.subject}{where}" + (f": {row.state.why}" if row.state.why else "")
                yield Entry(now, row.state.mood, str(request.key), text, "/ui/requests")
        case HyperNode() as domain if domain.spec.tier == 1 and isinstance(old, HyperNode) and new is not None:
            yield from _of_links(old, domain, now)
        case _:
            return


def _of_node(old: Node | None, node: Node, now: datetime, *, gone: bool) -> Iterator[Entry]:
    name = node.metadata.name
    if gone:
        yield Entry(now, "idle", f"Node {name}", "is no part of the cluster any more")
        return
    state = views.node_state(node)
    if old is None or views.node_state(old).word != state.word:
        text = f"is {state.word.lower()}" if state.word != "Faults" else "has faults"
        yield Entry(
            now, state.mood, f"Node {name}", text + (f": {state.why}" if state.why else ""), f"/ui/nodes/{name}"
        )


def _of_links(old: HyperNode, domain: HyperNode, now: datetime) -> Iterator[Entry]:
    before = {(link.a, link.b): link for link in old.status.unhealthy_links}
    after = {(link.a, link.b): link for link in domain.status.unhealthy_links}
    where = f"/ui/topology?fabric={domain.status.fabric}"
    for key, link in after.items():
        if key not in before or before[key].reason != link.reason:
            why = f": {link.message}" if link.message not in {"", link.reason} else ""
            mood: Mood = "bad" if link.reason == "down" else "busy"
            yield Entry(now, mood, f"Link {link.a} – {link.b}", f"is {link.reason}{why}", where)
    for key in before.keys() - after.keys():
        yield Entry(now, "good", f"Link {key[0]} – {key[1]}", "is well again", where)
    if domain.status.congested != old.status.congested:
        mood, text = ("busy", "is congested") if domain.status.congested else ("good", "is congested no more")
        yield Entry(now, mood, f"HyperNode {domain.metadata.name}", text, where)


class Chronicle:
    """The last things that happened since the coordinator started. Give `hear` to an informer."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._entries: deque[Entry] = deque(maxlen=MOST)
        self.quiet = True
        """While all that there was is heard of, nothing has happened."""

    def hear(self, old: Object | None, new: Object | None) -> None:
        if not self.quiet:
            self._entries.extend(entries(old, new, self._clock()))

    def latest(self, most: int = MOST) -> list[Entry]:
        """Return the newest first."""
        return list(self._entries)[: -most - 1 : -1]
