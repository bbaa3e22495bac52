"""The switches: which mechanisms are on (docs/decisions/040-switches-that-show-what-each-mechanism-is-worth.md).

They can change while requests are queued and running. Queued requests keep their places and follow the new policy from
then on. Cancellation applies as it was when a request arrived, except that switching it on ends detached requests. The
gauge `weir_mechanism_enabled` shows what is off.
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
    """The mechanisms to switch. Those not named stay as they are."""

    admission: bool | UnsetType = UNSET
    fairness: bool | UnsetType = UNSET
    cancellation: bool | UnsetType = UNSET


class Switches:
    """Reads and changes the policies of one router. The caller checks permission."""

    def __init__(self, dispatcher: Dispatcher, detached: DetachedRequests, log: Log) -> None:
        self._dispatcher = dispatcher
        self._detached = detached
        self._log = log
        detached.cancels = self.now.cancellation

    @property
    def now(self) -> Policies:
        """The policies in force."""
        return self._dispatcher.scheduler.policies

    def turn(self, change: SetPolicies) -> Policies:
        """Apply `change` and return the policies in force."""
        self.switch(msgspec.structs.asdict(change))
        return self.now

    def switch(self, change: dict[str, bool | UnsetType]) -> None:
        """Apply the named policies; does nothing if they are in force already."""
        before = self.now
        after = replace(before, **{name: on for name, on in change.items() if isinstance(on, bool)})
        if after == before:
            return
        ended = self._detached.switch(after.cancellation)
        self._dispatcher.switch(after)
        self._log.warning("policy switched", **asdict(after), detached_ended=ended)

    def announce(self) -> None:
        """Log at start which mechanisms are off."""
        if self.now.off:
            self._log.warning("mechanisms disabled at start", off=",".join(self.now.off), policy=str(self.now))
