"""Clipping, and the only place that draws noise: seeded for research, cryptographic integers for deployment.

Change it for another source of noise. It knows nothing of plans.

Imports from: base.
"""
