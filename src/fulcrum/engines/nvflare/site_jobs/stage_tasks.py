"""The fields of the tasks of a masked round on NVIDIA FLARE: a call or requests on the way down, replies on the way up.

>>> task = {}
>>> put_requests(task, {"lille": b"same", "metz": b"same"})
>>> task[REQUESTS], requests_in(task)
([b'same'], {'lille': b'same', 'metz': b'same'})
"""

from collections.abc import Mapping
from typing import Any

CALL = "fulcrum_call"
"""Server to regions, where regions sum masked groups: the stage to run, a `StageCall`."""

REQUESTS = "fulcrum_requests"
"""To silos: the distinct requests of a stage, as `put_requests` writes them."""

ADDRESSES = "fulcrum_addresses"
"""To silos, beside `REQUESTS`: by silo, the place of its request."""

REPLY = "fulcrum_reply"
"""Silo to region: the silo's signed answer or decline."""

REPLIES = "fulcrum_replies"
"""Region to server, where the federation is one masked group: the answers of the region's silos."""


def put_requests(task: Any, requests: Mapping[str, bytes]) -> None:
    """Writes requests into a task; equal requests of several silos are written once."""
    distinct = {request: place for place, request in enumerate(dict.fromkeys(requests.values()))}
    task[REQUESTS] = list(distinct)
    task[ADDRESSES] = {silo: distinct[request] for silo, request in requests.items()}


def requests_in(task: Any) -> dict[str, bytes]:
    """Returns the requests in a task, by silo; an entry in another form is left out."""
    requests, addresses = task.get(REQUESTS), task.get(ADDRESSES)
    if not isinstance(requests, list) or not isinstance(addresses, dict):
        return {}
    return {
        silo: requests[place]
        for silo, place in addresses.items()
        if isinstance(silo, str) and type(place) is int and 0 <= place < len(requests)
        if isinstance(requests[place], bytes)
    }
