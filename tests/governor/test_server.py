"""The protocol on the virtual clock: slots, those who leave, those who do not read, and the governor's own leaving."""

from __future__ import annotations

import asyncio
import socket

from services.governor.backends import StubBackend
from services.governor.job import Ended, Result
from services.governor.server import ServerLimits
from tests.governor.stand import Held, governor, scraped, until
from tests.governor.talk import ping, receipt, short, upload
from tests.virtual import run

DATA = b"hello world!"


def test_a_job_runs_is_confirmed_and_counted() -> None:
    async def main() -> None:
        async with governor(StubBackend(0.0)) as stand:
            line = await stand.connect()
            for frame in upload(DATA)[:-1]:
                assert (await line.ask(frame))["status"] == "ok"
            done = await line.ask(upload(DATA)[-1])
            assert (short(done), receipt(done, "server.executed_total")) == (("confirm", "done", "", "", 5), 1)
            counted = await scraped(stand)
            assert counted["heptamini_executed_total"] == counted["heptamini_server_health"] == 1
            assert counted["heptamini_backend_inflight"] == counted["heptamini_yielded_total"] == 0
            assert counted["heptamini_backend_cap"] == counted["weir_governor_connections"] == 1

    run(main())


def test_twenty_at_once_with_one_slot_are_one_that_runs_and_nineteen_yields_at_once() -> None:
    async def main() -> None:
        backend = Held()
        async with governor(backend) as stand:
            lines = [await stand.connect() for _ in range(20)]
            for line in lines:
                await line.ask(upload(DATA)[0])
            for line in lines:
                await line.send(*upload(DATA)[1:])
            await until(lambda: stand.gate.yielded_total == 19)
            counted = await scraped(stand)
            assert (backend.running, counted["heptamini_executed_total"], counted["heptamini_yielded_total"]) == (
                1,
                1,
                19,
            )
            backend.release.release()
            last = [[await line.hear() for _ in range(2)][-1] for line in lines]
            assert sorted(reply["status"] for reply in last if reply) == ["done"] + ["yield"] * 19
            assert backend.max_running == 1

    run(main())


def test_whoever_resends_what_was_yielded_when_told_to_is_served_in_the_end() -> None:
    """As the original's client does it: the same frame again with the next seq, no manifest."""

    async def client(stand, number: int) -> int:  # type: ignore[no-untyped-def]
        line = await stand.connect()
        frames, at, yields = upload(DATA, job=f"J_{number}"), 0, 0
        while True:
            reply = await line.ask(frames[at])
            if reply["status"] == "done":
                return yields
            if reply["status"] == "yield":
                yields += 1
                await asyncio.sleep(reply["retry_hint_ms"] / 1000)
            else:
                assert reply["status"] == "ok"
                at += 1

    async def main() -> None:
        async with governor(StubBackend(0.02)) as stand:
            yields = await asyncio.gather(*(client(stand, number) for number in range(20)))
            assert stand.gate.status.executed_total == 20
            assert sum(yields) == stand.gate.yielded_total > 0
            assert max(yields) <= 50
            names = sum(len(f"J_{number}") for number in range(20))  # in the last frames of the connections
            assert (stand.gate.waiting, stand.gate.held_bytes) == (0, names)

    run(main())


def test_a_client_that_hangs_up_frees_its_slot_and_its_job_is_cancelled() -> None:
    async def main() -> None:
        backend = Held()
        async with governor(backend) as stand:
            line = await stand.connect()
            await line.send(*upload(DATA))
            await until(lambda: backend.running == 1)
            await line.close()
            await until(lambda: stand.gate.status.inflight == 0)
            assert (backend.running, backend.cancelled) == (0, 1)
            assert stand.gate.held_bytes == 0
            assert (await (await stand.connect()).ask(ping()))["receipts"][0]["value_u64"] == 1

    run(main())


def test_a_client_that_is_gone_is_found_out_long_before_the_next_word_is_due() -> None:
    """To its server the end of its process is the end of its sending, and no more: only writes tell."""

    async def main() -> None:
        backend = Held()
        async with governor(backend, limits=ServerLimits(keepalive_every_s=600)) as stand:
            line = await stand.connect()
            for frame in upload(DATA)[:-1]:
                await line.ask(frame)
            await line.send(upload(DATA)[-1])
            await until(lambda: backend.running == 1)
            await line.close()  # everything is read: no reset, but the same end of data as of a half-close
            await until(lambda: stand.gate.status.inflight == 0)
            assert (backend.running, backend.cancelled) == (0, 1)

    run(main())


def test_a_client_that_only_stops_sending_still_hears_what_came_of_its_job() -> None:
    async def main() -> None:
        backend = Held()
        async with governor(backend) as stand:
            line = await stand.connect()
            await line.send(*upload(DATA))
            await until(lambda: backend.running == 1)
            line.writer.write_eof()
            heard = [await line.hear() for _ in range(3)]  # manifest, chunk, and the word that it is not forgotten
            assert [reply["status"] for reply in heard if reply] == ["ok", "ok", "ok"]
            backend.release.release()
            done = await line.hear()
            assert done is not None
            assert (done["status"], backend.cancelled) == ("done", 0)
            assert await line.hear() is None

    run(main())


def test_a_last_line_without_an_end_is_a_line_and_a_peer_that_leaves_is_told_so() -> None:
    async def main() -> None:
        async with governor(StubBackend(0.0)) as stand:
            line = await stand.connect()
            await line.send(ping(seq=7).rstrip())
            line.writer.write_eof()
            pong, gone = await line.hear(), await line.hear()
            assert pong is not None
            assert gone is not None
            assert (pong["seq"], short(gone)) == (8, ("confirm", "abort", "peer_gone", "conn_closed", 8))
            assert await line.hear() is None

    run(main())


def test_whoever_does_not_read_is_cut_off_and_holds_no_slot_meanwhile() -> None:
    async def main() -> None:
        async with governor(StubBackend(0.0), limits=ServerLimits(write_s=0.2)) as stand:
            line = await stand.connect()
            sock: socket.socket = line.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 131_072)  # room for some hundred replies
            line.reader._transport.pause_reading()  # type: ignore[attr-defined]
            frames = b"".join(upload(b"x", job="J"))

            async def flood() -> None:
                try:
                    while True:
                        await line.send(frames * 100)
                except OSError:
                    return

            flooding = asyncio.create_task(flood())
            other = await stand.connect()
            await until(lambda: not flooding.done() and stand.gate.status.executed_total > 100)
            async with asyncio.timeout(30):
                while len(stand.server.connections) > 1:
                    assert (await other.ask(ping()))["status"] == "ok"
            assert (await scraped(stand))["weir_governor_slow_readers_total"] == 1
            await until(lambda: stand.gate.status.inflight == 0)
            flooding.cancel()

    run(main())


def test_leaving_lets_jobs_end_and_tells_those_who_only_wait() -> None:
    async def main() -> None:
        backend = Held()
        async with governor(backend) as stand:
            working, idle = await stand.connect(), await stand.connect()
            await idle.ask(ping(seq=3))
            await working.send(*upload(DATA))
            await until(lambda: backend.running == 1)
            leaving = asyncio.create_task(stand.server.close(grace_s=30.0))
            deferred = await idle.hear()
            assert deferred is not None
            assert (short(deferred), await idle.hear()) == (
                ("confirm", "abort", "server_draining", "draining", 4),
                None,
            )
            backend.release.release()
            await leaving
            heard = [await working.hear() for _ in range(4)]
            assert [reply["status"] for reply in heard if reply] == ["ok", "ok", "done", "abort"]
            assert await working.hear() is None

    run(main())


def test_a_job_that_outlasts_the_grace_is_cancelled_and_its_client_is_told() -> None:
    async def main() -> None:
        backend = Held()
        async with governor(backend, grace_s=0.0) as stand:
            line = await stand.connect()
            await line.send(*upload(DATA))
            await until(lambda: backend.running == 1)
        heard = [await line.hear() for _ in range(4)]
        assert [reply["need_code"] for reply in heard[2:] if reply] == ["backend_error", "server_draining"]
        assert (backend.cancelled, stand.gate.status.inflight) == (1, 0)

    run(main())


def test_a_deadline_passes_while_the_job_runs() -> None:
    async def main() -> None:
        backend = Held()
        async with governor(backend) as stand:
            line = await stand.connect()
            await line.send(*upload(DATA, ttl_ms=500))
            heard = [await line.hear() for _ in range(3)]
            assert heard[-1] is not None
            assert short(heard[-1]) == ("confirm", "abort", "deadline", "deadline", 5)
            assert (backend.cancelled, stand.gate.status.inflight) == (1, 0)
            assert (await line.ask(ping()))["status"] == "ok"

    run(main())


def test_a_backend_that_is_full_itself_has_its_client_come_back_when_it_said() -> None:
    async def main() -> None:
        backend = Held()
        backend.result = Result(Ended.REFUSED, retry_s=2.5)
        backend.release.release()
        async with governor(backend) as stand:
            line = await stand.connect()
            await line.send(*upload(DATA))
            heard = [await line.hear() for _ in range(3)]
            assert heard[-1] is not None
            assert (heard[-1]["status"], heard[-1]["retry_hint_ms"]) == ("yield", 2500)
            backend.result = Result(Ended.DONE)
            backend.release.release()
            assert (await line.ask(upload(DATA)[-1]))["status"] == "done"

    run(main())


def test_one_address_leaves_connections_to_the_others_and_gets_its_own_back() -> None:
    async def main() -> None:
        async with governor(StubBackend(0.0), limits=ServerLimits(connections=4, source_share=0.5)) as stand:
            lines = [await stand.connect() for _ in range(2)]
            for line in lines:
                assert (await line.ask(ping()))["status"] == "ok"
            deferred = await (await stand.connect()).hear()
            assert deferred is not None
            assert deferred["need_code"] == "too_many_connections"
            other = await stand.connect(local_addr=("127.0.0.2", 0))
            assert (await other.ask(ping()))["status"] == "ok"
            await lines[0].close()
            await until(lambda: len(stand.server.connections) == 2)
            assert (await (await stand.connect()).ask(ping()))["status"] == "ok"

    run(main())


def test_one_connection_too_many_is_told_so_and_the_others_stay() -> None:
    async def main() -> None:
        async with governor(StubBackend(0.0), limits=ServerLimits(connections=3)) as stand:
            lines = [await stand.connect() for _ in range(3)]
            for line in lines:
                await line.ask(ping())
            turned_away = await stand.connect()
            deferred = await turned_away.hear()
            assert deferred is not None
            assert (deferred["need_code"], await turned_away.hear()) == ("too_many_connections", None)
            for line in lines:
                assert (await line.ask(ping()))["status"] == "ok"
            await lines[0].close()
            await until(lambda: len(stand.server.connections) == 2)
            assert (await (await stand.connect()).ask(ping()))["status"] == "ok"

    run(main())


def test_a_client_that_says_nothing_for_too_long_is_told_and_left() -> None:
    async def main() -> None:
        async with governor(StubBackend(0.0), idle_s=0.1) as stand:
            silent, half = await stand.connect(), await stand.connect()
            await half.send(ping()[:-5])
            for line in (silent, half):
                deferred = await line.hear()
                assert deferred is not None
                assert short(deferred) == ("confirm", "abort", "idle_timeout", "timeout", 1)
                assert await line.hear() is None
            assert stand.gate.held_bytes == 0

    run(main())


def test_a_job_that_takes_long_is_spoken_of_now_and_then() -> None:
    async def main() -> None:
        backend = Held()
        async with governor(backend, limits=ServerLimits(keepalive_every_s=0.05)) as stand:
            line = await stand.connect()
            await line.send(*upload(DATA))
            heard = [await line.hear() for _ in range(5)]
            assert [reply["status"] for reply in heard if reply] == ["ok"] * 5
            backend.release.release()
            while (reply := await line.hear()) and reply["status"] == "ok":
                pass
            assert reply is not None
            assert reply["status"] == "done"

    run(main())
