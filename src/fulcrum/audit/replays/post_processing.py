"""An attack on a server's models, which reveal no more than the sums that the server got.

The model is a function of regional sums, so an observer of the sums could compute the model. The observer of this game
sees the models alone, after every round, and plays the same game: the result must stay within the claim for the sums.
"""

import math

import numpy as np

from fulcrum.arrays import BoolArray, FloatArray
from fulcrum.audit.evidence.guessing import tally, thresholds_from
from fulcrum.audit.evidence.noise_tests import BINS
from fulcrum.audit.replays.audited_path import AuditedPath
from fulcrum.audit.replays.played_observers import Stage
from fulcrum.audit.replays.replaying import Reading, Replays, pattern_of
from fulcrum.simulation.embedded.server_variants import Servers

MODEL = "model"
"""The observer of the models alone."""

MOST_TRIALS = 6_000
"""The most replays: a replay moves a model of many coordinates in every round."""

_ROWS, _CLASSES = 8, 2  # of a small softmax head
_AT_ONCE = 1_000
_STREAM = 0x6D6F64656C


def models_replayed(path: AuditedPath, stage: Stage, *, trials: int, seed: int, error: float) -> Replays:
    """Plays the canary game with the server's models as the view, and returns the outcomes of the replays.

    In every replay the observer guesses the sign of the canary in the attacked silo's update from the models alone.

    Args:
        path: The release mechanism under audit.
        stage: All regions, with the attacked silo.
        trials: Number of replays; the first third is the pilot, which sets the thresholds of the guess.
        seed: Seed of the signs, and under a research plan also of the noise.
        error: Allowed error of every bound.
    """
    positive = np.random.default_rng([_STREAM, seed]).random(trials) < 0.5
    shown = np.concatenate(
        [
            _models(path, stage, positive[start : start + _AT_ONCE], (seed << 20) + start)
            for start in range(0, trials, _AT_ONCE)
        ],
        axis=1,
    )
    signs, pilot = np.where(positive, 1.0, -1.0), trials // 3
    weights = _weights(shown[:, :pilot], signs[:pilot])
    scores = weights @ shown
    counted = trials - pilot
    at = thresholds_from(scores[:pilot], positive[:pilot], trials=counted, error=error, delta=path.plan.delta)
    nothing = np.zeros((path.plan.rounds, path.plan.rounds))
    reading = Reading(
        view=stage.views[0],
        rare=tally(scores[pilot:], positive[pilot:], at.rare),
        usual=tally(scores[pilot:], positive[pilot:], at.usual),
        noise=None,
        turns={},
        looked_at=0,
        shape=np.zeros(BINS, dtype=np.intp),
        modulus=None,
        messages=1,
    )
    return Replays(
        stage=stage,
        readings=(reading,),
        silos={},
        products=nothing,
        compared=0,
        between=nothing,
        shapes={},
        trials=counted,
    )


def _models(path: AuditedPath, stage: Stage, positive: BoolArray, seed: int) -> FloatArray:
    """Returns the progress of models along the canary in every round, (rounds, replays)."""
    plan, replays, coordinates = path.plan, len(positive), _ROWS * _CLASSES
    along = np.zeros(coordinates)
    along[0], along[1] = math.sqrt(0.5), -math.sqrt(0.5)  # a softmax head ignores a shift of all classes
    servers = Servers([plan.server_rule] * replays, (coordinates,), classes=_CLASSES)
    models = np.zeros((coordinates, replays))
    signs, nothing = np.where(positive, 1.0, -1.0), np.zeros(coordinates * replays)
    shown, before = [], np.zeros(replays)
    for number, sign in enumerate(pattern_of(plan.rounds), 1):
        sent = (along[:, None] * signs * sign).ravel()
        sums = []
        for region, members in sorted(stage.members.items()):
            releases = [
                path.released(path, silo, number, sent if silo in stage.canary_silos else nothing, seed)
                for silo in members
            ]
            sums.append(path.sent_up(path, region, releases, number, seed)[0].reshape(coordinates, replays) * path.step)
        models = servers.advance(models, np.array(sums))
        gone = along @ models
        shown.append(gone - before)
        before = gone
    return np.array(shown)


def _weights(shown: FloatArray, signs: FloatArray) -> FloatArray:
    """Returns the weights of rounds that separate the signs best on the pilot."""
    response = shown @ signs / len(signs)
    noise = shown - np.outer(response, signs)
    covariance = noise @ noise.T / len(signs)
    ridge = 1e-6 * float(np.trace(covariance)) / len(covariance) or 1.0
    return np.asarray(np.linalg.solve(covariance + ridge * np.eye(len(covariance)), response))
