"""The signal to noise of the training under a plan, and how well models with such a ratio learnt in experiments.

>>> from fulcrum.planning.planner import draft_plan
>>> round(signal_to_noise(draft_plan("tcga-brca", rounds=10, epsilon=1.0), parameters=66), 2)
0.08
"""

import math

from fulcrum.errors import ParameterError
from fulcrum.planning.content.plan_figures import PlanFigures

WEAK_SIGNAL = 0.1
"""Signal to noise over all rounds below which a model does not learn; the hardest setting of the paper in
which a model learnt has 0.15."""

STRONG_SIGNAL = 1.0
"""Signal to noise from which a model learns nearly as much as without privacy.

Of heads that were trained on two data sets under 144 plans (`paper/signal_to_noise.py`), those predicted at this or
more learnt at least 0.87 of what they learn without privacy, those below `WEAK_SIGNAL` 0.45 at most. Between the two it
was anything from nothing to 0.95.
"""


def signal_to_noise(plan: PlanFigures, parameters: int) -> float:
    """Returns the best signal to noise of the whole training, sqrt(T / (d U)): every update aligned, norm C.

    U is the noise that enters the model, by the plan's weights and server rule. A round has signal C and noise of norm
    C sqrt(d U); with equal weights the ratio is the paper's sqrt(a n / d) / sigma at alignment a = 1. Signals add up
    over rounds, noise adds up in variance. A clip at a share of C, scaled up to C, changes neither; a server that
    shrinks its estimate removes more noise than signal, which is not counted.
    """
    if parameters < 1:
        raise ParameterError("plan.parameters-too-few", parameters=parameters)
    return math.sqrt(plan.rounds / (parameters * plan.model_noise))


def most_parameters(plan: PlanFigures) -> int:
    """Returns the largest d at which `signal_to_noise` is not below `WEAK_SIGNAL`; at least 1."""
    return max(1, math.floor(plan.rounds / (WEAK_SIGNAL**2 * plan.model_noise)))


def learnt_at(ratio: float) -> str:
    """Returns a sentence on how well models with this ratio learnt in the experiments behind `STRONG_SIGNAL`.

    Args:
        ratio: The predicted signal to noise, a result of `signal_to_noise`.
    """
    if ratio < WEAK_SIGNAL:
        outcome = f"below {WEAK_SIGNAL:g} learnt less than half"
    elif ratio < STRONG_SIGNAL:
        outcome = f"from {WEAK_SIGNAL:g} to {STRONG_SIGNAL:g} learnt anything from nothing to nearly all"
    else:
        outcome = f"from {STRONG_SIGNAL:g} on learnt at least four fifths"
    return f"In our experiments, heads with a predicted signal to noise {outcome} of what they learn without privacy."
