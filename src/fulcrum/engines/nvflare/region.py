"""The earlier place of a region's components, which kits of earlier versions name."""

from fulcrum.moved_names import names_in

__getattr__ = names_in(__name__, dict.fromkeys(("RegionGatherer",), "engines.nvflare.flare_region"), until="0.3")
