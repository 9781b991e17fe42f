"""The options that several commands share: federation, target, model, training.

Change this folder for another option of several commands.

Imports from: base, core, readers, planning, server, words, simulation, views.
"""
