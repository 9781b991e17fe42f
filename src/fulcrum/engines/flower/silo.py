"""The module that the mod was in: apps that were written before import it from here."""

from fulcrum.moved_names import names_in

__getattr__ = names_in(__name__, dict.fromkeys(("FulcrumMod", "fulcrum_mod"), "engines.flower.client_mod"), until="0.3")
