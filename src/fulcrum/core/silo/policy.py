"""What a silo insists on, whoever made the plan: its own limits, checked on figures it recomputes itself.

>>> policy = Policy(largest_epsilon_above=1.0, largest_epsilon_inside=8.0, smallest_region=2)
>>> from fulcrum.planning.planner import plan
>>> policy.check(plan("severe", rounds=10, epsilon={"region": 1.0, "aggregator": 8.0}), "region-1-1")
>>> policy.check(plan("severe", rounds=10, epsilon=1.0), "region-1-1")
Traceback (most recent call last):
fulcrum.errors.PolicyError: silo 'region-1-1' allows epsilon 8 inside its region, the plan spends 10.48
"""

import tomllib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

import msgspec

from fulcrum.core.masking.masking_thresholds import largest_minimum
from fulcrum.core.plan.figures import is_one_group
from fulcrum.core.plan.plan_reader import SupportsContent
from fulcrum.core.plan.verification import Recomputed
from fulcrum.core.plan.verified_plan import VerifiedPlan, verified
from fulcrum.core.topology import ROOT, SILO
from fulcrum.errors import PolicyError, listing
from fulcrum.parsing import toml_of
from fulcrum.rounding import display_epsilon

_Whole = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]  # silos tell policies apart by their encoding


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A silo's own limits.

    Attributes:
        largest_epsilon_above: Against anyone outside its region who sees the sums of its region; if all silos are
            masked as one group, against anyone outside the federation who sees the global sum.
        largest_epsilon_inside: Against whoever sees its own updates; where sums are masked, against the server together
            with silos, and with it any silo that sees the sum and knows its own noise.
        largest_epsilon: By observer, against any observer that a plan may name: its tiers, such as "country", and
            "federation". A plan without such an observer is refused: a plan that masks all silos as one group has no
            observers but "silo" and "federation".
        largest_delta: Of the plan.
        smallest_region: Silos that must share its region, itself included; where sums are masked, silos that must be
            in every sum with it.
        largest_rounds: Releases in all, whatever plans they are made under: the rounds of a plan and what the silo's
            ledger holds under other plans must not be more.
        least_colluders: Silos of its region that the plan must hold out against, or do without.
        peers: Names that must be in its region, each with its public key, or an empty string for any key.
        region_key: The public key that its releases are sealed to, "x25519:...". A plan that carries another for the
            region it puts the silo in is refused, so that neither another key nor another region opens them.
        issuer: The public key that must have signed the plan; see `fulcrum.core.plan.signatures`.
    """

    largest_epsilon_above: float
    largest_epsilon_inside: float
    largest_epsilon: dict[str, float] = {}
    largest_delta: float = 1e-5
    smallest_region: _Whole = 1
    largest_rounds: _Whole | None = None
    least_colluders: _Whole = 0
    peers: dict[str, str] = {}
    region_key: str | None = None
    issuer: str | None = None

    def check(self, plan: SupportsContent, silo: str, *, before: int = 0) -> None:
        """Raises `PolicyError` with the reason unless the plan keeps to the policy.

        Epsilons are recomputed from multipliers and roster on the path of `fulcrum verify`, not taken from the plan.

        Args:
            plan: What the silo was handed.
            silo: Whose policy it is.
            before: The releases that it made under other plans, `Ledger.releases_besides`.
        """
        self._check(_Figures.of(plan), silo, before)

    def check_every_silo(self, plan: SupportsContent) -> None:
        """Raises `PolicyError` with the reason of the first silo for which the plan does not keep to the policy.

        The plan is verified, and its figures are recomputed, once for all silos.
        """
        if type(self).check is not Policy.check:  # a class of the user's own asks more
            for silo in verified(plan, error=PolicyError).index:
                self.check(plan, silo)
            return
        figures = _Figures.of(plan)
        for silo in figures.plan.index:
            self._check(figures, silo, 0)

    def _check(self, figures: "_Figures", silo: str, before: int) -> None:
        """Holds the figures of a plan against the policy of one silo."""
        plan, tier = figures.plan, figures.plan.federation.innermost
        index, inner = plan.index_of(silo, PolicyError), tier.name
        if self.issuer is not None and plan.issuer != self.issuer:
            raise PolicyError("policy.issuer-differs", silo=silo, issuer=self.issuer)
        above, inside, observers = f"above its {inner}", f"inside its {inner}", plan.federation.tier_names
        if is_one_group(plan):  # nobody sees sums of tiers between: silos of other regions are observers inside
            above, inside, observers = "outside the federation", "inside the federation", (SILO, ROOT)
        if unknown := [name for name in self.largest_epsilon if name not in observers]:
            known = listing(observers)
            raise PolicyError("policy.observer-unknown", silo=silo, observer=unknown[0], known=known)
        limits = [
            (above, inner, self.largest_epsilon_above),
            (inside, SILO, self.largest_epsilon_inside),
            *((f"against the observer {name!r}", name, largest) for name, largest in self.largest_epsilon.items()),
        ]
        for where, observer, largest in limits:
            spent = figures.recomputed.epsilon(observer)[index]
            if not spent <= largest:
                raise PolicyError(
                    "policy.epsilon-exceeded", silo=silo, largest=largest, where=where, epsilon=display_epsilon(spent)
                )
        if not plan.delta <= self.largest_delta:
            raise PolicyError("policy.delta-exceeded", silo=silo, largest=self.largest_delta, delta=plan.delta)
        self.check_releases(silo, plan.rounds, before)
        if plan.colluders < self.least_colluders:
            raise PolicyError("policy.colluders-few", silo=silo, least=self.least_colluders, colluders=plan.colluders)
        region = tier.nodes[tier.parent_of[index]]
        members = figures.members[region]
        if len(members) < self.smallest_region:
            raise PolicyError(
                "policy.region-small",
                silo=silo,
                tier=inner,
                least=self.smallest_region,
                region=region,
                members=len(members),
            )
        if plan.aggregation == "masked" and self.smallest_region > (most := largest_minimum(plan, silo)):
            raise PolicyError("policy.sum-small", silo=silo, least=self.smallest_region, most=most)
        for peer, key in self.peers.items():
            if peer not in members:
                raise PolicyError("policy.peer-missing", silo=silo, peer=peer, tier=inner, region=region)
            if key and plan.keys.get(peer) != key:
                raise PolicyError("policy.peer-key-differs", silo=silo, peer=peer)
        if self.region_key is not None and plan.keys.get(region) != self.region_key:
            carried = "another key" if region in plan.keys else "no key"
            raise PolicyError(
                "policy.region-key-differs",
                silo=silo,
                region_key=self.region_key,
                carried=carried,
                tier=inner,
                region=region,
            )

    def check_releases(self, silo: str, rounds: int, before: int) -> None:
        """Raises `PolicyError` unless the rounds of a plan, and the releases before it, are as few as allowed."""
        if self.largest_rounds is not None and before + rounds > self.largest_rounds:
            earlier = f", and {before} releases were made under others" if before else ""
            raise PolicyError(
                "policy.rounds-exceeded", silo=silo, largest=self.largest_rounds, rounds=rounds, earlier=earlier
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Figures:
    """The figures of a plan that policies are held against, recomputed on the path of `fulcrum verify`.

    Attributes:
        plan: The plan, verified.
        members: By region, the silos of it.
        recomputed: The epsilons of every silo, by observer.
    """

    plan: VerifiedPlan
    members: dict[str, list[str]]
    recomputed: Recomputed

    @classmethod
    def of(cls, plan: SupportsContent) -> Self:
        """Returns the figures of a plan, or raises `PolicyError` where the plan does not verify."""
        sound = verified(plan, error=PolicyError)
        content = sound.content()
        members: dict[str, list[str]] = defaultdict(list)
        for entry in content.silos:
            members[entry.node].append(entry.silo)
        # Of the accountants, renyi is the one proven for what a deployed silo draws.
        proven = msgspec.structs.replace(content.settings, accountant="renyi")
        deployed = content.purpose == "deployment"
        recomputed = Recomputed(msgspec.structs.replace(content, settings=proven) if deployed else content)
        return cls(plan=sound, members=members, recomputed=recomputed)


def read_policy(path: str | Path) -> Policy:
    """Reads a policy from a TOML file."""
    try:
        return msgspec.convert(toml_of(Path(path).read_bytes()), Policy)
    except OSError as error:
        raise PolicyError("policy.file-unreadable", file=path, reason=error.strerror) from None
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise PolicyError("policy.file-malformed", file=path, reason=error) from None
