"""Charts as Vega-Lite specifications, their look in light and dark, and their SVG and PNG.

Change this folder for another chart.

Imports from: base, core, planning, server, words.
"""
