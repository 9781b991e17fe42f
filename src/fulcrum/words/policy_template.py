"""A policy file with comments: every limit that a silo can set, with its default.

>>> policy_template().splitlines()[0]
'# The limits of one silo. The silo releases nothing under a plan beyond these limits.'
"""

_TEMPLATE = """\
# The limits of one silo. The silo releases nothing under a plan beyond these limits.
# Every line that begins with "# " and a name is a limit that is not set: remove the "# " to set the limit.

# The largest epsilon over all rounds against an observer outside the silo's region who sees the sums of the region.
largest_epsilon_above = 1.0

# The largest epsilon over all rounds against an observer of the silo's own releases, such as the aggregator of its
# region; with masked sums, against the server together with silos.
largest_epsilon_inside = 4.0

# The largest delta: the probability with which the promise may fail. Keep delta well below one over the number of
# silos or, where persons are protected, below one over the number of persons.
# largest_delta = 1e-5

# The most releases under all plans together, those in the silo's ledger included.
# largest_rounds = 100

# The least number of silos in the silo's region, the silo itself included.
# smallest_region = 3

# The least number of silos of the region that may collude with an observer without breaking the promise.
# least_colluders = 1

# The unit of privacy of these limits: "silo", "person" or "record". A plan of another unit is refused.
# unit = "silo"

# For persons and records: "replace" or "add-remove". With "replace" a plan in the other convention is refused.
# neighbours = "replace"

# For persons: the least number of silos with records of one person that a plan must provide for.
# silos_per_person = 1

# Units of earlier releases in the silo's ledger that releases in the unit above may follow.
# earlier_units = ["silo"]

# The public key that must have signed the plan, as `fulcrum keygen` prints it.
# issuer = "..."

# The public key of the region's aggregator. A plan with another key for the region is refused.
# region_key = "x25519:..."

# The largest epsilon against any further observer that a plan names: a tier such as country, or federation.
# [largest_epsilon]
# country = 0.5

# Silos that must be in the region, with their public keys; an empty text allows any key.
# [peers]
# lyon = ""
"""


def policy_template() -> str:
    """Returns a policy with the two required limits set, and a comment on every other limit."""
    return _TEMPLATE
