"""One pull job that is under way: its rollout, its clock, and what of it is being written. Knows no store."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from msgspec.structs import replace

from stoker.objects.cluster_images import NodeImage, NodeTrouble
from stoker_coordinator.controllers import pulljobs, tags
from stoker_coordinator.controllers.pulljobs import Clockwork, PullJob, Status, Verdict
from stoker_coordinator.controllers.rollout import Place, Rollout
from stoker_coordinator.controllers.tags import WAITING, Found
from stoker_coordinator.controllers.writing import REPLACED

_THROUGH = ("succeeded", "failed")


class JobRun:
    """A job that is not over. *found* of a node is taken from its NodeImage, but while that is being written."""

    def __init__(self, job: PullJob, now: datetime, at: float) -> None:
        """*at* is now, too, on a clock that nobody sets."""
        self.job = job
        self.order = pulljobs.order(job)
        self.rollout = Rollout()
        self.began = job.status.start_time or now
        self.clock = Clockwork(job.status.worked_seconds, at)
        self.round = pulljobs.next_round(job, self.began, now)[0]
        self.end: Verdict = ""
        self.unsure = False
        """It may mean nodes that are not known yet: it is not complete, whatever those say that are."""
        self.due: float | None = None
        """When to look again although nothing happens, on the clock that nobody sets."""
        self._busy = False
        self._writing: dict[str, int] = {}
        """How many writes there are on the way to a node's NodeImage."""
        self._again: set[str] = set()
        """Nodes that are through, and are to look again in this round."""

    @property
    def uid(self) -> str:
        return self.job.metadata.uid

    # ------------------------------------------------------------------------------------------ being told

    def edit(self, job: PullJob) -> list[str]:
        """The job is another one now. Return the nodes that pull for what it was: they are to be asked anew."""
        self.job, order = job, pulljobs.order(job)
        if order == self.order:
            return []
        self.order = order
        return [name for name, node in self.rollout.nodes.items() if node.found.state == "active"]

    def place(self, place: Place, image: NodeImage | None) -> bool:
        """The job means this node. Return whether its turn is to be taken away, since it does not answer."""
        known = self.rollout.node(place.name)
        self.rollout.place(place)
        if known is None:
            self.tell(place.name, image)
        node = self.rollout.node(place.name)
        return place.silent and node is not None and node.found.state == "active"

    def tell(self, name: str, image: NodeImage | None) -> bool:
        """The node's NodeImage is this now. Return whether that changes anything."""
        node = self.rollout.node(name)
        if node is None or name in self._writing:
            return False
        found = tags.found(image, self.order)
        if name in self._again and found.state in _THROUGH:
            found = WAITING
        if found == node.found:
            return False
        self.rollout.tell(name, found)
        return True

    # ------------------------------------------------------------------------------------------ being asked

    def begin(self) -> list[str]:
        """Return the nodes whose turn it is now."""
        chosen = [] if self.end else self.rollout.take(pulljobs.most_active(self.job, self.rollout))
        self._busy = self.rollout.count("active") > 0
        return chosen

    def again(self, name: str) -> bool:
        """Say whether the node is through and has to look again."""
        return name in self._again

    def writing(self, name: str) -> None:
        """The node is being asked: what its NodeImage says until that is written is old."""
        self._writing[name] = self._writing.get(name, 0) + 1
        self.rollout.tell(name, Found("active"))

    def written(self, name: str, image: NodeImage | None, problem: str) -> None:
        """The node has been asked, and its NodeImage is this now; or it cannot be."""
        left = self._writing.get(name, 0) - 1
        if left > 0:
            self._writing[name] = left
            return
        self._writing.pop(name, None)
        self._again.discard(name)
        if problem and problem != REPLACED:
            images = self.order.images
            troubles = tuple(NodeTrouble(name, each, "NotAsked", problem) for each in images)
            self.rollout.tell(name, Found("failed", (), troubles))
        else:
            self.tell(name, image)

    def look(self, now: datetime, at: float) -> Verdict:
        """Go on to *now*, *at* on a clock that nobody sets: count work, begin the next round, see if it is over."""
        self.clock = pulljobs.wind(self.clock, at, busy=self._busy)
        if pulljobs.lasts(self.job):
            number = pulljobs.next_round(self.job, self.began, now)[0]
            if number > self.round:
                self.round = number
                self._look_again()
        end = pulljobs.verdict(self.job, self.rollout, self.clock)
        self.end = "" if self.unsure and end == "Complete" else end
        self.due = self._wake_at(now, at)
        return self.end

    def _look_again(self) -> None:
        for name, node in self.rollout.nodes.items():
            if node.found.state in _THROUGH:
                self._again.add(name)
        for name in self._again:
            self.rollout.tell(name, WAITING)

    def _wake_at(self, now: datetime, at: float) -> float | None:
        if pulljobs.lasts(self.job):
            return at + (pulljobs.next_round(self.job, self.began, now)[1] - now).total_seconds()
        left = pulljobs.overdue_in(self.job, self.clock)
        if left is None or not self.rollout.count("active"):
            return None
        return at + max(left, 0.0)

    def status(self, now: datetime) -> Status:
        return pulljobs.status(self.job, self.rollout, self.clock, self.end, self.began, now)

    def with_status(self, kept: PullJob, now: datetime) -> PullJob:
        """Return the job as it is kept with the status that it has by now; another job of that name stays as it is."""
        if kept.metadata.uid != self.uid or kept.status.completion_time is not None:
            return kept
        return replace(kept, status=self.status(now))

    def asked(self) -> Collection[str]:
        """Return the nodes that have been asked."""
        return [
            name for name, node in self.rollout.nodes.items() if node.found.state != "waiting" or name in self._again
        ]
