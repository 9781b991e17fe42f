"""A training module whose start gives no model."""


def start(options):
    return [0.0]


def train(model, assignment):
    return model
