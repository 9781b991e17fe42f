"""Training at a silo: the user's training module in a separate process, bounded in time, memory and disk.

Change this folder for a new way to run a training module. No module here decides about a release: every failure of
training becomes `TrainingFailedError`, and the silo hides the failure.

Imports from: base, core, core.plan.
"""
