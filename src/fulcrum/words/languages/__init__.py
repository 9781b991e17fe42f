"""The first page of the report in German and French: promise, verdict, figures and signature.

Change this folder for a further language: a table of phrases, and no code. The signed plan stays English.

Imports from: base, core, planning, words.
"""
