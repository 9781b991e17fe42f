"""The page as a web application, and whoever asks it."""

import socket
import threading

import pytest
from page_client import Client

from fulcrum.readers.profiles import profile
from fulcrum.views.page.page_app import application
from fulcrum.views.page.page_guard import hosts_of


@pytest.fixture(scope="module")
def app():
    return application(profile("consortium"), hosts=hosts_of("127.0.0.1"))


@pytest.fixture
def client(app):
    return Client(app)


@pytest.fixture(scope="module")
def address():
    uvicorn = pytest.importorskip("uvicorn", reason="the page needs uvicorn")
    listener = socket.create_server(("127.0.0.1", 0))
    app = application(profile("consortium"), hosts=hosts_of("127.0.0.1"))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    server.should_exit = True
    thread.join(10)
    listener.close()


@pytest.fixture
def opened(visit, address):
    def opened(**options):
        page = visit(address, **options)
        page.wait_for_selector("html[data-answers]")
        return page

    return opened
