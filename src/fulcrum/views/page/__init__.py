"""The page that one plays with: its questions and answers, its web server, and the processes that work for it.

Change it for another control of the page.

Imports from: base, core, rules, readers, planning, words, views, views.charts, views.report, views.terminal.
"""
