"""The interactive page: its questions and answers, its web server, and its worker processes.

Change this folder for another control of the page.

Imports from: base, core, rules, readers, planning, words, views, views.charts, views.report, views.terminal.
"""
