"""A publisher that tells when each of its messages was sent and acknowledged, for other benchmarks.

    python -m tests.benchmarks.prober SERVER TOPIC

One message every 10 ms, whatever becomes of earlier ones, until it is killed. Each acknowledgement
is a line with two times of the machine's monotonic clock.
"""

from __future__ import annotations

import sys
import time

import trio

from client_sdk import Receipt, open_client

EVERY = 0.01


async def main(server: str, topic: str) -> None:
    """Publish for ever."""
    async with open_client([server]) as client, trio.open_nursery() as nursery:
        due = trio.current_time()
        while True:
            sent = time.monotonic()
            nursery.start_soon(tell, await client.publish_soon(topic, f"{sent}"), sent)
            due += EVERY
            await trio.sleep_until(due)


async def tell(receipt: Receipt, sent: float) -> None:
    """One line for one acknowledgement."""
    await receipt.wait()
    print(sent, time.monotonic(), flush=True)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2])
