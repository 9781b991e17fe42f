"""Questions to the page as a web application, without a browser, and its replies."""

import asyncio
import json

from coroutines import run_coroutine

from fulcrum.readers.federation_json import roster_of
from fulcrum.readers.federation_reader import read_federation

JSON, FILE = {"content-type": "application/json"}, {"content-type": "application/octet-stream"}
SETTINGS = {"rounds": 10, "epsilon": 1.0, "delta": 1e-5, "colluders": 0, "allocation": "optimal", "accountant": "exact"}
HOSPITALS = b"silo,records,region,epsilon,group\nlille,1200,north,,a\nnice,1500,south,0.5,a\nlyon,900,south,,b\n"


class Reply:
    def __init__(self, messages):
        self.status = messages[0]["status"]
        self.pairs = [(name.decode(), value.decode()) for name, value in messages[0]["headers"]]
        self.headers = dict(self.pairs)
        self.body = b"".join(message.get("body", b"") for message in messages[1:])

    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        assert self.headers["content-type"] == "application/json"
        [(key, reason)] = self.json().items()
        assert key == "error"
        assert len(reason.splitlines()) == 1
        return reason


class Client:
    """Speaks ASGI, in a thread: a browser's tests may hold the loop of this one."""

    def __init__(self, app):
        self.app = app
        self.asked = 0  # pieces of a body that were taken

    def __call__(self, method, path, body=b"", headers=(), host="127.0.0.1:8000"):
        pieces = list(body) if isinstance(body, list) else [body]
        path, _, query = path.partition("?")
        named = {"host": host, **dict(headers)}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in named.items() if value is not None],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8000),
        }
        messages = []

        async def receive():
            if not pieces:  # as a server does, until whoever asked goes away
                await asyncio.Event().wait()
            self.asked += 1
            return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

        async def send(message):
            messages.append(message)

        run_coroutine(self.app(scope, receive, send))
        return Reply(messages)

    def plan(self, federation="consortium", path="/plan", more=None, **settings):
        roster = json.loads(msgspec_json(roster_of(read_federation(federation))))
        question = {"federation": roster, "settings": SETTINGS | settings, **(more or {})}
        return self("POST", path, json.dumps(question).encode(), JSON)


def msgspec_json(value):
    import msgspec

    return msgspec.json.encode(value)
