"""The promises of setups that Fulcrum did not plan: settings read from other tools, and the epsilon of each observer.

Change this folder for the settings of another tool. Code of the user is parsed, and never imported or run.

Imports from: base, core.
"""
