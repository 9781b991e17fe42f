"""The earlier place of a silo's components, which kits of earlier versions name."""

from fulcrum.moved_names import names_in

__getattr__ = names_in(__name__, dict.fromkeys(("SiloExecutor",), "engines.nvflare.flare_silo"), until="0.3")
