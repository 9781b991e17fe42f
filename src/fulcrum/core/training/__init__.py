"""Training at a silo: the user's training module, run in a process of its own and bounded in time, memory and disk.

Change this folder for another way to run a training module. Training decides nothing about a release: a failure of
training becomes `TrainingFailedError`, and the silo hides the failure.

Imports from: base, core.plan.
"""
