"""The mechanism, and the only place that draws noise: seeded for research, cryptographic integers for deployment.

Change it for another mechanism or source of noise. It knows nothing of plans.

Imports from: base.
"""
