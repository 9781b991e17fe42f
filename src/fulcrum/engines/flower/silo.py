"""The earlier place of the mod, which apps of earlier versions import."""

from fulcrum.moved_names import names_in

__getattr__ = names_in(__name__, dict.fromkeys(("FulcrumMod", "fulcrum_mod"), "engines.flower.client_mod"), until="0.3")
