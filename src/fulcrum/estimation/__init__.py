"""What a server makes of sums that it has seen: pooled over regions, shrunk toward zero, and how far the model moves.

Change it for another estimator. Everything here is a function of what was released, so it tells an observer of the same
sums nothing new; where that is so, and where not, is decided by `planning`.

Imports from: base.
"""
