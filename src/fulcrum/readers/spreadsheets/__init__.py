"""Tables of silos as spreadsheets export them: alphabets, separators, headings in several languages, written numbers.

Change it for another habit of writing tables.

Imports from: base, core.
"""
