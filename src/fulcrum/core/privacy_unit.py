"""The unit of privacy: the data in which neighbouring federations differ, and the largest effect on a release.

>>> SILO_UNIT.relation, SILO_UNIT.sensitivity
("replace one silo's whole dataset", 2.0)
>>> patient = PrivacyUnit(name="person", neighbours="add-remove", label="patient")
>>> patient.relation, patient.sensitivity
('add or remove all records of one patient in one silo', 1.0)

A release with effective noise multiplier s is a Gaussian mechanism of sensitivity-to-noise ratio kappa / s, with kappa
the sensitivity below. So T releases have mu² = kappa² T / s², and no further property of the unit enters an epsilon.

With the unit "person" or "record" a silo sends b times the sum over its persons of the person's gradient, clipped at C.
The weight of the silo in a plan is b, the weight of one person, and a person moves a release by at most kappa b C.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.core.choices import NEIGHBOURS, UNITS, Neighbours, UnitName
from fulcrum.core.lattice import SIGNAL_LOST
from fulcrum.errors import ParameterError, check_known

_MOST_SILOS, _KAPPA = 10**6, {"replace": 2.0, "add-remove": 1.0}
_HOLDERS = ("silo", "record", "hospital", "clinic", "site", "institution", "company", "region", "federation", "dataset")
"""Words that name no person: a reader would take the promise for one to a whole silo."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyUnit:
    """A neighbouring relation, in words and as a number.

    Attributes:
        name: The name of the unit in plan files: "silo", "person" or "record".
        neighbours: "replace": the data of one unit are replaced. "add-remove": the data of one unit come or go.
        silos_per_person: h, the largest number of silos that hold records of one person, over all rounds and plans.
        label: The word for a person in sentences, such as "patient"; empty for the name of the unit.
        is_cut: True in deployment, where the sum of a silo's persons is cut to a lattice after its clip.
    """

    name: UnitName = "silo"
    neighbours: Neighbours = "replace"
    silos_per_person: int = 1
    label: str = ""
    is_cut: bool = False

    def __post_init__(self) -> None:
        check_known("unit", self.name, UNITS)
        check_known("neighbours", self.neighbours, NEIGHBOURS)
        count = self.silos_per_person
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or not 1 <= count <= _MOST_SILOS:
            raise ParameterError("unit.silos-per-person-range", silos_per_person=count, most=_MOST_SILOS)
        if not self.is_within_silo and (self.neighbours != "replace" or count != 1 or self.label):
            raise ParameterError("unit.silo-alone", unit=self.name)
        if self.label and not (self.label.isalpha() and self.label.islower() and len(self.label) <= 32):
            raise ParameterError("unit.label-invalid", label=self.label)
        # Sentences would promise the protection of another unit: "every patient" of a plan that protects records.
        if self.label and (self.name == "record" or self.label.removesuffix("s") in _HOLDERS):
            raise ParameterError("unit.label-of-other-unit", label=self.label, unit=self.name)

    @property
    def is_within_silo(self) -> bool:
        """True for the units "person" and "record": a silo holds many units, and clips the gradient of each unit."""
        return self.name != "silo"

    @property
    def noun(self) -> str:
        """The word for one unit in sentences."""
        return self.label or self.name

    @property
    def protected_data(self) -> str:
        """The protected data, to be read after "every" or "a"."""
        if not self.is_within_silo:
            return "silo's whole dataset"
        held = "" if self.name == "record" else "'s records"
        return f"{self.noun}{held} in {_silos(self.silos_per_person)}"

    @property
    def relation(self) -> str:
        """The change that leads from a federation to its neighbours."""
        if not self.is_within_silo:
            return "replace one silo's whole dataset"
        whose = f"one {self.noun}" if self.name == "record" else f"all records of one {self.noun}"
        where = _silos(self.silos_per_person)
        if self.neighbours == "add-remove":
            return f"add or remove {whose} in {where}"
        other = f"another {self.noun}" if self.name == "record" else f"the records of another {self.noun}"
        return f"replace {whose} in {where} by {other} in the same {'silo' if where == 'one silo' else 'silos'}"

    @property
    def sensitivity(self) -> float:
        """The largest L2 distance by which the change moves the release of one silo, over the weight times C.

        Two vectors in the ball of radius C are at most 2C apart, and a vector of the ball at most C from nothing. In
        deployment the sum of a silo's persons may be scaled down to the largest sum and is then cut to the lattice. Cut
        after scaling, two sums differ by up to sqrt(d) steps more, at most 1 % of C (docs/maths.md, "A person").
        """
        return _KAPPA[self.neighbours] + (SIGNAL_LOST if self.is_cut and self.is_within_silo else 0.0)

    def factors(self, members: IntArray | Sequence[int]) -> FloatArray:
        """Returns by node the factor on the sensitivity for a person with records in several silos.

        A person enters node v through k_v silos, the sum of all k_v at most h, and moves the node's sum by at most
        k_v kappa b C. With the factor sqrt(h min(h, m_v)) on the noise of every node of m_v silos, the squared shifts
        add up to at most sum of k_v² / (h min(h, m_v)), at most 1, of the squared shift of a person in one silo.

        Args:
            members: The number of silos in the sum of each node.
        """
        count = self.silos_per_person
        return np.asarray(np.sqrt(count * np.minimum(count, np.asarray(members, dtype=np.float64))))


def other_neighbours(unit: PrivacyUnit) -> Neighbours:
    """Returns the second convention, in which a plan for persons states its epsilons too."""
    return "add-remove" if unit.neighbours == "replace" else "replace"


def ratio_of_conventions(unit: PrivacyUnit) -> float:
    """Returns the shift in the second convention over the shift in the convention of the unit."""
    cut = SIGNAL_LOST if unit.is_cut and unit.is_within_silo else 0.0
    return (_KAPPA[other_neighbours(unit)] + cut) / unit.sensitivity


def whole_silo_ratio(unit: PrivacyUnit) -> float:
    """Returns the shift of a silo's whole data of one person's largest norm, over the shift of one person.

    Replacing all data of a silo moves its sum by at most twice the largest sum.
    """
    return _KAPPA["replace"] / unit.sensitivity


def _silos(count: int) -> str:
    return "one silo" if count == 1 else f"up to {count} silos"


SILO_UNIT = PrivacyUnit()
