"""Tables of silos as spreadsheets export them: alphabets, separators, headings in several languages, written numbers.

Change this folder for a further habit of writing tables.

Imports from: base, core.
"""
