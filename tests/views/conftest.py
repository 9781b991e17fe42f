"""The page as a web application, and whoever asks it."""

import pytest
from page_client import Client

from fulcrum.federation.profiles import profile
from fulcrum.views.page_app import application
from fulcrum.views.page_guard import hosts_of


@pytest.fixture(scope="module")
def app():
    return application(profile("consortium"), hosts=hosts_of("127.0.0.1"))


@pytest.fixture
def client(app):
    return Client(app)
