"""Charts as Vega-Lite specifications, and how they look in light and dark, as SVG and PNG.

Change it for another chart.

Imports from: base, core, planning, server, words.
"""
