"""Outputs of all streams of one event loop.

The engine writes a byte into a socket when something has come; the loop, which waits for sockets anyway, wakes the
streams that it came for.
"""

from __future__ import annotations

import asyncio
from itertools import count

from twostroke import _twostroke


class Mailbox:
    """One for each event loop, which is not kept alive by it. It listens as long as a stream is open."""

    def __init__(self) -> None:
        self.inbox = _twostroke.Inbox()
        self._keys = count()
        self._news: dict[int, asyncio.Event] = {}
        self._finished: set[int] = set()

    def open(self, loop: asyncio.AbstractEventLoop) -> int:
        """The key of a new stream."""
        if not self._news:
            loop.add_reader(self.inbox.fileno(), self._rung)
        key = next(self._keys)
        self._news[key] = asyncio.Event()
        return key

    async def wait(self, key: int) -> bool:
        """Waits until something has come; whether it was the last."""
        await self._news[key].wait()
        self._news[key].clear()
        return key in self._finished

    def close(self, loop: asyncio.AbstractEventLoop, key: int) -> None:
        """Forgets a stream; its request, if it is under way, is cancelled."""
        self.inbox.close(key)
        self._finished.discard(key)
        if self._news.pop(key, None) is not None and not self._news:
            loop.remove_reader(self.inbox.fileno())

    def _rung(self) -> None:
        for key, finished in self.inbox.take():
            if finished:
                self._finished.add(key)
            self._news[key].set()
