"""How Sphinx builds the site from these pages and the docstrings; `make docs` runs it."""

import sys
from pathlib import Path

import fulcrum

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "Fulcrum"
release = fulcrum.__version__
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",  # the code of every documented name, within the site
    "sphinx_copybutton",
    "myst_parser",
    "pages",
    "mathml",
    "docstrings",
    "names",
    "notebooks",
]
exclude_patterns = ["_ext"]

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3  # links such as maths.md#lateral-floor

default_role = "literal"  # `name` in a docstring; names.py makes links of those that the reference documents
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
napoleon_numpy_docstring = False
napoleon_attr_annotations = False  # the signature says them
nitpick_ignore_regex = [("py:.*", r"(?!fulcrum\.).*")]  # no inventory of other projects is fetched
nitpick_ignore = [  # internal
    ("py:class", "fulcrum.core.store.ledger_file.LedgerFile"),
    ("py:class", "fulcrum.core.training.assignment.Training"),
    ("py:class", "fulcrum.core.silo.site.Site"),
    ("py:class", "fulcrum.aggregation.region_store.RegionFile"),
    ("py:class", "fulcrum.aggregation.presence.Aggregation"),
    ("py:class", "fulcrum.aggregation.contributions.Intake"),
    ("py:class", "fulcrum.core.rosters.Rosters"),
    ("py:class", "fulcrum.simulation.tuning_search.Confirmation"),
    ("py:class", "fulcrum.simulation.data.sources.feature_ranges.FeatureRange"),
    ("py:class", "fulcrum.simulation.data.sources.feature_ranges.FeatureRanges"),
    ("py:class", "fulcrum.audit.audit_run.AuditedModule"),
    ("py:class", "fulcrum.core.noise.mechanism.GaussianMechanism"),
    ("py:class", "fulcrum.core.noise.mechanism.LatticeMechanism"),
    ("py:class", "fulcrum.core.silo.releasing.GradientSum"),
    ("py:class", "fulcrum.core.store.ledger_entries.ChargedUnit"),
    ("py:class", "fulcrum.simulation.data.federated_records.DataSource"),
    ("py:class", "fulcrum.server.coordinator._State"),
    ("py:class", "fulcrum.rules.rule_registry._Rule"),
]

copybutton_prompt_text = r"\$ |>>> |\.\.\. "  # a copied block has neither prompts nor results
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"

html_theme = "furo"
html_title = f"Fulcrum {release}"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_search_summary = False  # the summaries are fetched, which a browser refuses from file://
