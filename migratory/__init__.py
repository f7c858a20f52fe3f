"""Migratory: a clustered notification service that orders, acknowledges and survives.

The way of a message, file by file (`docs/way_of_a_message.md` tells it in full):

    client_sdk/publishing.py    the publisher numbers it and sends it until it is answered
    front/plane.py, frames.py   its contact reads the socket and cuts out the frame
    wire/codec.py               ... which becomes a request
    front/publishing.py         ... which gets a number for its answer and goes to the engine
    shell/driver.py             the engine takes everything that waits, in one turn
    coordinator/contact.py      it waits here under its identity, and is passed on
    shell/peer_link.py          ... to the member that coordinates its topic group
    coordinator/leading.py      the coordinator gives it epoch, sequence and index
    coordinator/replica.py      followers store it; with Q copies it is committed, everywhere
    cache/state.py              each member takes it into the topic's head and history
    coordinator/contact.py      the contact finds that its own log has it, and answers
    delivery/desk.py            each member announces it to its front
    front/subscriptions.py      ... which encodes it once, for all subscribers of the topic
    client_sdk/subscriptions.py a subscriber checks its sequence and moves its position

`coordinator`, `cache` and `migratory.delivery` decide; `node`, `shell` and `front` act; `wire` is
what they say to each other.
"""
