"""The switches: which mechanisms are on, for an operator's hand and for the lab's.

Each can be switched while requests are in line and at workers. Nothing is lost by it: those in line keep their places,
and are treated from then on as what is on says. With cancellation it counts what was on when a request came, except
that nobody is left to work for nobody once it is back.

What is switched off is in the log, in `/admin/state` and in the gauge `weir_mechanism_enabled`, so that no operator
takes a switch for a fault.
"""

from __future__ import annotations

from dataclasses import asdict, replace

import msgspec
from msgspec import UNSET, UnsetType

from services.core.policies import Policies
from services.router.deciding.dispatcher import Dispatcher
from services.router.serving.detached import DetachedRequests
from services.runtime.log import Log


class SetPolicies(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which mechanisms to switch on or off. What is not named stays as it is."""

    admission: bool | UnsetType = UNSET
    fairness: bool | UnsetType = UNSET
    cancellation: bool | UnsetType = UNSET


class Switches:
    """Show and turn them. One for each router, behind whatever checks who may."""

    def __init__(self, dispatcher: Dispatcher, detached: DetachedRequests, log: Log) -> None:
        self._dispatcher = dispatcher
        self._detached = detached
        self._log = log
        detached.cancels = self.now.cancellation

    @property
    def now(self) -> Policies:
        """What is in force."""
        return self._dispatcher.scheduler.policies

    def turn(self, wish: SetPolicies) -> Policies:
        """Switch as asked; what is in force then."""
        self.switch(msgspec.structs.asdict(wish))
        return self.now

    def switch(self, wish: dict[str, bool | UnsetType]) -> None:
        """To what is named. In force already: nothing happens."""
        before = self.now
        after = replace(before, **{name: on for name, on in wish.items() if isinstance(on, bool)})
        if after == before:
            return
        ended = self._detached.switch(after.cancellation)
        self._dispatcher.switch(after)
        self._log.warning("policy switched", **asdict(after), detached_ended=ended)

    def announce(self) -> None:
        """At the start: say what is off."""
        if self.now.off:
            self._log.warning("mechanisms are off from the start", off=",".join(self.now.off), policy=str(self.now))
