"""The command that serves the page for changes to a federation."""

import socket
import sys
import webbrowser
from typing import Annotated

import msgspec
from cyclopts import Parameter

from fulcrum.cli.shared_options.federations import ColumnOption, ThousandsOption, federation_argument
from fulcrum.cli.shared_options.options import (
    PAGE,
    ClipNormOption,
    FederationArgument,
    FormatOption,
    LeastInfluenceOption,
    NeighboursOption,
    ParametersOption,
    PersonsPerSiloOption,
    RecipeOption,
    ServerOption,
    SilosPerPersonOption,
    UnitNameOption,
    UnitOption,
    WeightsOption,
    number,
    option,
    several,
    word_or_number,
)
from fulcrum.errors import ParameterError
from fulcrum.views.page.page_app import application
from fulcrum.views.page.page_guard import everywhere, hosts_of, loopback
from fulcrum.views.page.page_server import listening, web_server
from fulcrum.views.page.page_settings import PageSettings
from fulcrum.views.terminal.screen import working


def serve_command(
    federation: FederationArgument = "consortium",
    *,
    column: ColumnOption = (),
    thousands: ThousandsOption = None,
    recipe: RecipeOption = "paper",
    weights: WeightsOption = None,
    clip_norm: ClipNormOption = None,
    server: ServerOption = None,
    least_influence: LeastInfluenceOption = None,
    parameters: ParametersOption = None,
    unit: UnitOption = "silo",
    unit_name: UnitNameOption = "",
    neighbours: NeighboursOption = "replace",
    silos_per_person: SilosPerPersonOption = 1,
    persons_per_silo: PersonsPerSiloOption = None,
    host: Annotated[str, option("Address that the server listens on.", PAGE)] = "127.0.0.1",
    port: Annotated[int, number("Port that the server listens on; 0 takes any free port.", PAGE)] = 8000,
    allow_remote: Annotated[
        bool, Parameter(help="Listen on an address that other machines can reach.", negative=(), group=PAGE)
    ] = False,
    name: Annotated[
        tuple[str, ...],
        several("Further host name under which browsers reach the server; may be repeated. Default: none.", PAGE),
    ] = (),
    open_browser: Annotated[
        bool, Parameter(name="--open", help="Open the page in a browser.", negative=(), group=PAGE)
    ] = False,
    style: FormatOption = "table",
) -> int:
    """Serve a page for changes to a federation, with the new plan at once; end the server with Ctrl-C.

    The page starts with the given recipe, weights, clip norm, server, least influence, parameters and unit of privacy.
    """
    if not loopback(host) and not allow_remote:
        raise ParameterError("cli.host-remote", host=host)
    if not 0 <= port <= 65_535:
        raise ParameterError("cli.port-range", port=port)
    reading = federation_argument(federation, column, thousands)
    with working("Preparing the page"):
        first = PageSettings(
            recipe=recipe,
            weights=word_or_number(weights),
            clip_norm=word_or_number(clip_norm),
            server=server,
            least_influence=least_influence,
            parameters=parameters,
            unit=unit,
            unit_name=unit_name,
            neighbours=neighbours,
            silos_per_person=silos_per_person,
            persons_per_silo=persons_per_silo,
        )
        app = application(reading.federation, hosts=hosts_of(host, name), settings=first, notes=reading.notes)
        serving = web_server(app)
    listener = listening(host, port)
    wide = everywhere(host)
    here = ("::1" if ":" in host else "127.0.0.1") if wide else host
    at = listener.getsockname()[1]
    address = f"http://{f'[{here}]' if ':' in here else here}:{at}/"
    others = f", for other machines at http://{name[0] if name else socket.gethostname()}:{at}/," if wide else ""
    lines = {
        "json": msgspec.json.encode({"address": address, "notes": reading.notes}).decode(),
        "csv": f"address\n{address}",
    }
    sys.stdout.write(lines.get(style, f"The page is at {address}{others} until Ctrl-C ends it.") + "\n")
    sys.stdout.flush()
    if open_browser:
        webbrowser.open(address)
    try:
        serving.run(sockets=[listener])
    except KeyboardInterrupt:  # Ctrl-C ends the server
        pass
    finally:
        listener.close()
    return 0
