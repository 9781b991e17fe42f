"""The earlier place of the strategy, which apps of earlier versions import."""

from fulcrum.moved_names import names_in

__getattr__ = names_in(__name__, {"FulcrumStrategy": "engines.flower.strategy"}, until="0.3")
