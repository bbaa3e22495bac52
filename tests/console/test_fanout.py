"""One picture for everybody who looks: made once, only while somebody does, and held back by nobody."""

from __future__ import annotations

import asyncio

from tests.console.rig import Gallery
from tests.virtual import run


def test_no_picture_is_made_while_nobody_looks() -> None:
    async def main() -> None:
        gallery = Gallery()
        await asyncio.sleep(60)
        assert gallery.made == 0
        watcher = gallery.watcher()
        await asyncio.sleep(1.05)
        assert gallery.made == 6  # one at once, and five in the second after it
        await watcher.leave()
        await asyncio.sleep(60)
        assert gallery.made == 6
        assert not gallery.fanout.viewers

    run(main())


def test_a_picture_is_made_and_encoded_once_for_all_who_look() -> None:
    async def main() -> None:
        gallery = Gallery()
        watchers = [gallery.watcher() for _ in range(50)]
        await asyncio.sleep(1.05)
        assert gallery.made == 6
        assert {tuple(watcher.pictures) for watcher in watchers} == {(b"1", b"2", b"3", b"4", b"5", b"6")}
        for watcher in watchers:
            await watcher.leave()

    run(main())


def test_a_viewer_is_greeted_and_sees_the_newest_picture_at_once() -> None:
    async def main() -> None:
        gallery = Gallery()
        first = gallery.watcher()
        await asyncio.sleep(0.5)
        late = gallery.watcher()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert b"event: hello\ndata: {}\n\n" in late.wire.sent[0]
        assert late.pictures == [b"3"]
        await first.leave()
        await late.leave()

    run(main())


def test_a_slow_viewer_misses_pictures_gets_the_newest_and_holds_nobody_back() -> None:
    async def main() -> None:
        gallery = Gallery()
        slow, quick = gallery.watcher(), gallery.watcher()
        await asyncio.sleep(0.05)
        slow.wire.write_paused = True
        await asyncio.sleep(2.0)
        assert quick.pictures[-1] == b"11"
        assert slow.pictures == [b"1"]
        slow.wire.reads_again()
        await asyncio.sleep(0.01)
        assert slow.pictures == [b"1", b"11"]
        await asyncio.sleep(0.2)
        assert slow.pictures[-1] == quick.pictures[-1] == b"12"
        await slow.leave()
        await quick.leave()
        assert slow.exchange.log["missed"] == 9
        assert quick.exchange.log["missed"] == 0

    run(main())


def test_one_viewer_more_than_there_may_be_is_told_to_come_back_and_may_when_one_has_left() -> None:
    async def main() -> None:
        gallery = Gallery()
        watchers = [gallery.watcher() for _ in range(64)]
        await asyncio.sleep(0.1)
        late = gallery.watcher()
        await asyncio.sleep(0.1)
        refusal = late.refusal
        assert refusal is not None
        assert (refusal.status, refusal.code) == (503, "too_many_viewers")
        assert refusal.details.retry_hint_ms is not None
        assert not late.wire.sent
        assert len(gallery.fanout.viewers) == 64
        await watchers.pop().leave()
        watchers.append(gallery.watcher())
        await asyncio.sleep(0.3)
        assert watchers[-1].pictures
        for watcher in watchers:
            await watcher.leave()

    run(main())


def test_when_the_service_drains_every_stream_comes_to_its_end() -> None:
    async def main() -> None:
        gallery = Gallery()
        watchers = [gallery.watcher() for _ in range(3)]
        await asyncio.sleep(0.3)
        gallery.fanout.close()
        await asyncio.gather(*(watcher.task for watcher in watchers))
        assert all(watcher.wire.complete for watcher in watchers)
        made = gallery.made
        await asyncio.sleep(5)
        assert gallery.made == made

    run(main())


def test_a_picture_that_cannot_be_made_ends_the_streams_and_says_so_without_its_values() -> None:
    def broken(number: int) -> bytes:
        if number == 2:
            raise ValueError("sekrit")
        return b"%d" % number

    async def main() -> None:
        gallery = Gallery(broken)
        watcher = gallery.watcher()
        await asyncio.wait_for(watcher.task, 5)
        assert watcher.wire.complete
        assert watcher.pictures == [b"1"]
        again = gallery.watcher()
        await asyncio.sleep(0.1)
        assert again.pictures == [b"3"]
        await again.leave()
        gallery.fanout._log.close()
        said = gallery.log_stream.getvalue()
        assert b"could not be built" in said
        assert b"sekrit" not in said

    run(main())


def test_those_who_look_are_told_of_the_end_in_the_order_in_which_they_came() -> None:
    left: list[int] = []

    async def main() -> None:
        gallery = Gallery()
        watchers = [gallery.watcher() for _ in range(64)]
        for number, watcher in enumerate(watchers):
            watcher.task.add_done_callback(lambda _, number=number: left.append(number))
        await asyncio.sleep(0.05)
        gallery.fanout.close()
        await asyncio.sleep(0.05)

    run(main())
    assert left == list(range(64))
