"""Bytes that are under way through a gate: so many in all, so many of one peer, in the order of arrival."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from coroutines import run_coroutine

from fulcrum.engines.flower.server_side.bytes_in_flight import BytesInFlight, NoRoomError


def room(**changed):
    return BytesInFlight(**{"most": 100, "most_of_a_peer": 40, "most_requests": 5, "patience": 5.0} | changed)


class Request:
    """A request that waits for room, holds it until it is ended, and remembers when it got it."""

    order = ()

    def __init__(self, room, peer, weight):
        self.end, self.name = asyncio.Event(), (peer, weight)
        self.task = asyncio.create_task(self.run(room, peer, weight))

    async def run(self, room, peer, weight):
        async with room.reserve(peer, weight):
            Request.order = (*Request.order, self.name)
            await self.end.wait()


async def settled():
    for _ in range(20):
        await asyncio.sleep(0)


def run(work):
    Request.order = ()
    return run_coroutine(asyncio.wait_for(work(), 20))


def test_requests_wait_for_room_and_get_it_in_their_order():
    async def work():
        here = room(most_of_a_peer=1000)
        first, *others = [Request(here, peer, weight) for peer, weight in (("a", 90), ("b", 30), ("c", 5), ("d", 80))]
        await settled()
        assert (Request.order, here.reserved_bytes) == ((("a", 90),), 90)
        first.end.set()
        await settled()
        assert Request.order == (("a", 90), ("b", 30), ("c", 5)), "c fitted before, and did not overtake b"
        assert here.reserved_bytes == 35
        for other in others:
            other.end.set()
        await asyncio.gather(*(other.task for other in others))
        assert here.reserved_bytes == 0

    run(work)


def test_a_peer_that_used_up_its_part_keeps_nobody_else_waiting():
    async def work():
        here = room()
        greedy = [Request(here, "a", 20) for _ in range(4)]
        other = Request(here, "b", 40)
        await settled()
        assert Request.order == (("a", 20), ("a", 20), ("b", 40))
        for request in (*greedy, other):
            request.end.set()
        await asyncio.gather(*(request.task for request in (*greedy, other)))
        assert here.reserved_bytes == 0

    run(work)


def test_a_request_larger_than_any_part_has_room_alone():
    async def work():
        here = room()
        large, small = Request(here, "a", 500), Request(here, "a", 1)
        await settled()
        assert Request.order == (("a", 500),)
        large.end.set()
        small.end.set()
        await asyncio.gather(large.task, small.task)
        assert Request.order == (("a", 500), ("a", 1))

    run(work)


def test_a_request_waits_no_longer_than_its_patience_and_leaves_no_trace():
    async def work():
        here = room(patience=0.05)
        async with here.reserve("a", 100):
            with pytest.raises(NoRoomError):
                async with here.reserve("b", 1):
                    pytest.fail("there was no room")
            assert here.reserved_bytes == 100
        async with here.reserve("b", 100):
            assert here.reserved_bytes == 100
        assert here.reserved_bytes == 0

    run(work)


def test_a_peer_has_so_many_requests_those_that_wait_among_them():
    async def work():
        here = room(patience=0.2)
        async with AsyncExitStack() as held:
            await held.enter_async_context(here.reserve("a", 40))
            waiting = [Request(here, "a", 40) for _ in range(4)]
            await settled()
            with pytest.raises(NoRoomError):
                await held.enter_async_context(here.reserve("a", 1))
            await held.enter_async_context(here.reserve("b", 1))
            found = await asyncio.gather(*(request.task for request in waiting), return_exceptions=True)
            assert {type(error) for error in found} == {NoRoomError}
            await held.enter_async_context(here.reserve("c", 40))

    run(work)


@pytest.mark.parametrize("granted", [False, True])
def test_a_request_that_is_given_up_gives_its_room_back(granted):
    async def work():
        here = room()
        holder = Request(here, "a", 100)
        await settled()
        waiting = Request(here, "b", 30)
        await settled()
        if granted:
            holder.end.set()
            await holder.task
        waiting.task.cancel()
        await asyncio.gather(waiting.task, return_exceptions=True)
        assert here.reserved_bytes == (0 if granted else 100)
        holder.end.set()
        await holder.task
        async with here.reserve("c", 100):
            assert here.reserved_bytes == 100

    run(work)
