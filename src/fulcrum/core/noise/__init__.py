"""The mechanism, and the only place that draws noise: seeded for research, cryptographic integers for deployment.

Change the folder for a new mechanism or source of noise. The folder knows nothing about plans.

Imports from: base.
"""
