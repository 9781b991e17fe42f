"""The module that the strategy was in: apps that were written before import it from here."""

from fulcrum.moved_names import names_in

__getattr__ = names_in(__name__, {"FulcrumStrategy": "engines.flower.strategy"}, until="0.3")
