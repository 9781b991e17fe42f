"""The settings of a silo's training between two releases, and the kind of training that each unit of privacy allows.

>>> LocalTraining(learning_rate=0.5).batch
64
"""

from dataclasses import dataclass, field

import numpy as np

from fulcrum.core.privacy_unit import PrivacyUnit
from fulcrum.errors import ParameterError


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTraining:
    """Settings of a silo's training between two releases.

    Attributes:
        learning_rate: The step of stochastic gradient descent.
        steps: The number of steps.
        batch: The number of records of a step.
    """

    learning_rate: float
    steps: int = 10
    batch: int = 64

    def __post_init__(self) -> None:
        if isinstance(self.learning_rate, str) or not 0 < self.learning_rate < np.inf:
            raise ParameterError("training.learning-rate-range", learning_rate=self.learning_rate)
        for name, value in (("steps", self.steps), ("batch", self.batch)):
            if isinstance(value, str) or value < 1:
                raise ParameterError("number.whole-range", name=name, least=1, value=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientTraining(LocalTraining):
    """Settings of training for the units "person" and "record": every silo sends one sum of gradients a round.

    The gradient of a person is taken at the global model, over all records of the person. More local steps would mix
    persons before the clip, and a sample of records gains nothing if everybody takes part in every round.

    Attributes:
        learning_rate: The learning rate of the server, the factor of the mean gradient in the model's displacement. A
            rate before the clip would change the noise over the signal; after the sum the rate is a public constant.
        class_shares: Public shares of the classes, from the literature for example. The built-in head then begins with
            their logarithms as intercepts: with rare classes most of a clipped gradient would otherwise be spent on
            the intercept. All intercepts begin with zero by default. Shares counted from the silos' data are a release
            that no epsilon counts.
        steps: 1.
        batch: 0, for all records.
    """

    class_shares: tuple[float, ...] = ()
    steps: int = field(default=1, init=False)
    batch: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if isinstance(self.learning_rate, str) or not 0 < self.learning_rate < np.inf:
            raise ParameterError("training.learning-rate-range", learning_rate=self.learning_rate)
        if any(not 0 < share < np.inf for share in self.class_shares):
            raise ParameterError("training.class-shares-range", shares=self.class_shares)


def check_training_fits(training: LocalTraining, unit: PrivacyUnit) -> None:
    """Raises `ParameterError` unless the unit of privacy allows this training.

    The clip bounds a person's share of a release only if the gradients of persons have not met before the clip.
    """
    one_gradient = isinstance(training, GradientTraining)
    if unit.is_within_silo and not one_gradient:
        raise ParameterError(
            "training.unit-steps",
            unit=unit.name,
            steps=training.steps,
            batch=training.batch,
            learning_rate=training.learning_rate,
        )
    if one_gradient and not unit.is_within_silo:
        raise ParameterError("training.unit-one-gradient", learning_rate=training.learning_rate)
