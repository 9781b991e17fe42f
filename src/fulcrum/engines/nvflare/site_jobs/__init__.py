"""The job of a site on NVIDIA FLARE: the allowed peers and commands, the fields of messages, and the end of a job.

Change this folder for another command that a site may take. Silo, region and server share the folder.

Imports from: base, core, server.
"""
