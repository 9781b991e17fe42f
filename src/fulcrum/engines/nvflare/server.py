"""The earlier place of a server's components, which kits of earlier versions name."""

from fulcrum.moved_names import names_in

__getattr__ = names_in(
    __name__, dict.fromkeys(("FederationController", "PlanAssessor"), "engines.nvflare.flare_server"), until="0.3"
)
