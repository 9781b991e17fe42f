"""A silo's own limits on every plan, checked on figures that the silo recomputes.

>>> policy = Policy(largest_epsilon_above=1.0, largest_epsilon_inside=8.0, smallest_region=2)
>>> from fulcrum.planning.planner import plan
>>> policy.check(plan("severe", rounds=10, epsilon={"region": 1.0, "aggregator": 8.0}), "region-1-1")
>>> policy.check(plan("severe", rounds=10, epsilon=1.0), "region-1-1")
Traceback (most recent call last):
fulcrum.errors.PolicyError: silo 'region-1-1' allows epsilon 8 inside its region, the plan spends 10.48. ...
"""

import tomllib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

import msgspec
import numpy as np

from fulcrum.core.choices import Neighbours, UnitName
from fulcrum.core.masking.masking_thresholds import largest_minimum
from fulcrum.core.plan.figures import charged_tier, is_one_group, own_rounds
from fulcrum.core.plan.plan_reader import SupportsContent
from fulcrum.core.plan.recomputed import Recomputed
from fulcrum.core.plan.verified_plan import VerifiedPlan, verified_plan
from fulcrum.core.privacy_unit import PrivacyUnit
from fulcrum.core.topology import ROOT, SILO
from fulcrum.errors import PolicyError, listing, suggestion
from fulcrum.parsing import toml_of
from fulcrum.rounding import display_epsilon

_Whole = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]  # silos tell policies apart by their encoding


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A silo's own limits.

    Attributes:
        largest_epsilon_above: The largest epsilon against an observer outside the silo's region who sees the region's
            sums; if all silos are masked as one group, against an observer outside the federation who sees the global
            sum.
        largest_epsilon_inside: The largest epsilon against an observer of the silo's own releases; with masked sums,
            against the server together with silos, and so against any silo that sees the sum and knows its own noise.
        largest_epsilon: The largest epsilon by observer, for any observer that a plan may name: a tier such as
            "country", or "federation". A plan without such an observer is refused. A plan that masks all
            silos as one group has the observers "silo" and "federation" alone.
        largest_delta: The largest delta of a plan.
        smallest_region: The least number of silos in the silo's region, the silo included; with masked sums, the least
            number of silos in every sum.
        largest_rounds: The largest number of releases under all plans together: the rounds of the plan, plus the
            releases under other plans in the silo's ledger.
        least_colluders: The least number of colluding silos of the region that the plan must withstand.
        peers: The silos that must be in the region, with their public keys; an empty string allows any key.
        region_key: The public key of the seal of releases, "x25519:...". A plan with another key for the silo's region
            is refused, so that no other key and no other region opens a release.
        issuer: The public key that must have signed the plan; see `fulcrum.core.plan.signatures`.
        unit: The unit of privacy of all limits: "silo", "person" or "record". A plan of another unit is refused: an
            epsilon of one person says nothing about a silo.
        neighbours: For persons and records, the convention of all limits. With "replace" a plan in the convention
            "add-remove" is refused, since its epsilons are about half as large for the same noise.
        silos_per_person: The least number of silos with records of one person that a plan must provide for. If a plan
            provides for several silos, the limits are compared with the largest epsilon of all silos.
        earlier_units: Units of earlier releases in the silo's ledger that may be followed by releases in `unit`. Every
            release is then charged in both units, as far as a bound is known; see `ChargedUnit.factor_to`.
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
    unit: UnitName = "silo"
    neighbours: Neighbours = "replace"
    silos_per_person: _Whole = 1
    earlier_units: tuple[UnitName, ...] = ()

    def check(self, plan: SupportsContent, silo: str, *, before: int = 0) -> None:
        """Raises `PolicyError` with the reason unless the plan keeps to the policy.

        The epsilons are recomputed from multipliers and roster, as in `fulcrum verify`, and not taken from the plan: an
        issuer can write any epsilon into a plan file.

        Args:
            plan: The plan that the silo received.
            silo: The silo of the policy.
            before: The number of the silo's releases under other plans, `Ledger.releases_besides`.
        """
        self._check(_Figures.of(plan), silo, before)

    def check_every_silo(self, plan: SupportsContent) -> None:
        """Raises `PolicyError` with the reason of the first silo whose check fails.

        The plan is verified, and its figures are recomputed, once for all silos.
        """
        if type(self).check is not Policy.check:  # a subclass of the user may check more
            for silo in verified_plan(plan, error=PolicyError).index:
                self.check(plan, silo)
            return
        figures = _Figures.of(plan)
        for silo in figures.plan.index:
            self._check(figures, silo, 0)

    def _check(self, figures: "_Figures", silo: str, before: int) -> None:
        """Compares the figures of a plan with the limits of the policy, for one silo."""
        plan, tier = figures.plan, figures.plan.federation.innermost
        index, inner = plan.index_of(silo, PolicyError), tier.name
        if self.issuer is not None and plan.issuer != self.issuer:
            raise PolicyError("policy.issuer-differs", silo=silo, issuer=self.issuer)
        self._check_unit(plan.unit, silo)
        above, inside, observers = f"above its {inner}", f"inside its {inner}", plan.federation.tier_names
        if is_one_group(plan):
            # No observer sees the sum of a tier between: silos of other regions are observers inside the one group.
            above, inside, observers = "outside the federation", "inside the federation", (SILO, ROOT)
        if unknown := [name for name in self.largest_epsilon if name not in observers]:
            names = listing(observers)
            raise PolicyError("policy.observer-unknown", silo=silo, observer=unknown[0], known=names)
        limits = [
            (above, inner, self.largest_epsilon_above),
            (inside, SILO, self.largest_epsilon_inside),
            *((f"against the observer {name!r}", name, largest) for name, largest in self.largest_epsilon.items()),
        ]
        for where, observer, largest in limits:
            epsilon = figures.recomputed.epsilon(charged_tier(plan, observer))[index]
            if not epsilon <= largest:  # not `epsilon > largest`, which lets nan pass
                epsilon = display_epsilon(epsilon)
                raise PolicyError("policy.epsilon-exceeded", silo=silo, largest=largest, where=where, epsilon=epsilon)
        if not plan.delta <= self.largest_delta:
            raise PolicyError("policy.delta-exceeded", silo=silo, largest=self.largest_delta, delta=plan.delta)
        self.check_releases(silo, own_rounds(plan, index), before)
        if plan.colluders < self.least_colluders:
            raise PolicyError("policy.colluders-few", silo=silo, least=self.least_colluders, colluders=plan.colluders)
        region = tier.nodes[tier.parent_of[index]]
        members, place = figures.members[region], {"tier": inner, "region": region}
        smallest = len(members)
        if (rosters := plan.federation.rosters) is not None:  # limits hold in every round in which the silo takes part
            places = np.array([plan.index[name] for name in members])
            present = rosters.present[:, places][rosters.present[:, index]]
            smallest = int(present.sum(axis=1).min())
            members = np.array(members, dtype=object)[present.all(axis=0)].tolist()
        if smallest < (least := self.smallest_region):
            raise PolicyError("policy.region-small", silo=silo, **place, least=least, members=smallest)
        # The other members can unmask a sum with the silo's input against the silo's will, as far as the plan allows. A
        # larger minimum would be a promise that the silo cannot enforce.
        if plan.is_masked and least > (most := largest_minimum(plan, silo)):
            raise PolicyError("policy.sum-small", silo=silo, least=least, most=most)
        # Keys as well as names: an issuer could give the name of a trusted peer to a silo of its own.
        for peer, key in self.peers.items():
            if peer not in members:
                raise PolicyError("policy.peer-missing", silo=silo, peer=peer, **place)
            if key and plan.keys.get(peer) != key:
                raise PolicyError("policy.peer-key-differs", silo=silo, peer=peer)
        if self.region_key is not None and plan.keys.get(region) != self.region_key:
            carried = "another key" if region in plan.keys else "no key"
            key = self.region_key
            raise PolicyError("policy.region-key-differs", silo=silo, region_key=key, carried=carried, **place)

    def _check_unit(self, unit: PrivacyUnit, silo: str) -> None:
        """Raises `PolicyError` for a plan whose epsilons protect another unit than the limits of the policy."""
        if unit.name != self.unit:
            raise PolicyError("policy.unit-differs", silo=silo, unit=self.unit, plan_unit=unit.name)
        if unit.is_within_silo and unit.neighbours == "add-remove" and self.neighbours != "add-remove":
            raise PolicyError("policy.neighbours-differ", silo=silo, neighbours=self.neighbours)
        if unit.is_within_silo and unit.silos_per_person < self.silos_per_person:
            least, provided = self.silos_per_person, unit.silos_per_person
            raise PolicyError("policy.silos-per-person-few", silo=silo, least=least, provided=provided, unit=unit.noun)

    def check_releases(self, silo: str, rounds: int, before: int) -> None:
        """Raises `PolicyError` if the rounds of a plan and the releases before are more than `largest_rounds`."""
        if (largest := self.largest_rounds) is not None and before + rounds > largest:
            earlier = f", and {before} releases were made under others" if before else ""
            raise PolicyError("policy.rounds-exceeded", silo=silo, largest=largest, rounds=rounds, earlier=earlier)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Figures:
    """The figures of a plan that policies limit, recomputed as in `fulcrum verify`.

    Attributes:
        plan: The verified plan.
        members: The silos by region.
        recomputed: The epsilons of every silo, by observer.
    """

    plan: VerifiedPlan
    members: dict[str, list[str]]
    recomputed: Recomputed

    @classmethod
    def of(cls, plan: SupportsContent) -> Self:
        """Returns the figures of a plan, or raises `PolicyError` for a plan that does not verify."""
        sound = verified_plan(plan, error=PolicyError)
        content = sound.content()
        members: dict[str, list[str]] = defaultdict(list)
        for entry in content.silos:
            members[entry.node].append(entry.silo)
        # A deployed silo draws discrete noise, and only the accountant renyi is proven for discrete noise.
        proven = msgspec.structs.replace(content.settings, accountant="renyi")
        recomputed = Recomputed(msgspec.structs.replace(content, settings=proven) if sound.is_deployment else content)
        return cls(plan=sound, members=members, recomputed=recomputed)


def read_policy(path: str | Path) -> Policy:
    """Reads a policy from a TOML file."""
    try:
        limits, fields = toml_of(Path(path).read_bytes()), Policy.__struct_fields__
        if unknown := next((name for name in limits if name not in fields), ""):
            near, names = suggestion(unknown, fields), listing(fields, 20)
            raise PolicyError("policy.field-unknown", file=path, field=unknown, known=names, suggestion=near)
        return msgspec.convert(limits, Policy)
    except OSError as error:
        raise PolicyError("file.unreadable", file=path, reason=error.strerror) from None
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise PolicyError("policy.file-malformed", file=path, reason=error) from None
