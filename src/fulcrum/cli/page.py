"""The command that serves the page to change a federation in."""

import socket
import sys
import webbrowser
from typing import Annotated

import msgspec
from cyclopts import Parameter

from fulcrum.cli.options import FederationArgument, FormatOption, number
from fulcrum.errors import ParameterError
from fulcrum.federation.reading import read_federation
from fulcrum.views.page_app import application
from fulcrum.views.page_guard import everywhere, hosts_of, loopback
from fulcrum.views.page_server import listening, web_server
from fulcrum.views.terminal import check_format, working


def serve_command(
    federation: FederationArgument = "consortium",
    *,
    host: Annotated[str, Parameter(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, number("The port to listen on; 0 for any that is free.")] = 8000,
    allow_remote: Annotated[bool, Parameter(help="Listen where other machines can reach it.", negative=())] = False,
    name: Annotated[
        tuple[str, ...],
        Parameter(
            help="HOST: another name under which browsers find it; may be repeated.", negative=(), show_default=False
        ),
    ] = (),
    open_browser: Annotated[bool, Parameter(name="--open", help="Open the page in a browser.", negative=())] = False,
    style: FormatOption = "table",
) -> int:
    """Serve a page to change a federation in and see at once what follows; end it with Ctrl-C."""
    check_format(style)
    if not loopback(host) and not allow_remote:
        raise ParameterError(
            f"--host {host} can be reached by other machines, and the page asks nobody who they are. "
            "Give --allow-remote if that is meant"
        )
    if not 0 <= port <= 65_535:
        raise ParameterError(f"--port must be from 0 to 65535, got {port}")
    with working("Preparing the page"):
        server = web_server(application(read_federation(federation), hosts=hosts_of(host, name)))
    listener = listening(host, port)
    wide = everywhere(host)
    here = ("::1" if ":" in host else "127.0.0.1") if wide else host
    at = listener.getsockname()[1]
    address = f"http://{f'[{here}]' if ':' in here else here}:{at}/"
    others = f", for other machines at http://{name[0] if name else socket.gethostname()}:{at}/," if wide else ""
    told = {"json": msgspec.json.encode({"address": address}).decode(), "csv": f"address\n{address}"}
    sys.stdout.write(told.get(style, f"The page is at {address}{others} until Ctrl-C ends it.") + "\n")
    sys.stdout.flush()
    if open_browser:
        webbrowser.open(address)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:  # how one ends it
        pass
    finally:
        listener.close()
    return 0
