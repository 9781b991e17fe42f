"""The embedded engine: all silos, seeds and allocations of a comparison trained together in NumPy.

Change the folder for another way of training many silos at once.

Imports from: base, core, rules, planning, simulation.data.
"""
