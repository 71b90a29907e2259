"""Gradient of the policy from a batch of decisions: credit of a choice times slope of the choice.

The form of credit (`dips.credit`) and the estimator of the slope (`dips.training.estimators`) are
objects. Their names in the configuration are looked up here, and nowhere else.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dips.credit.base import CreditAssignment
from dips.credit.decisions import CreditedDecisions, current_signals
from dips.credit.registry import make_credit
from dips.policy.stacked import StackedPolicies
from dips.recommender.stacked import StackedRecommenders, StateDict
from dips.rollout.trace import StoredTrace
from dips.training.config import TrainConfig
from dips.training.estimators import Estimator, make_estimator
from dips.training.policy_batches import PolicyBatch, RefreshTable, rebuild_inputs


def policy_gradients(
    stack: StackedRecommenders,
    policies: StackedPolicies,
    trace: StoredTrace,
    refresh_table: RefreshTable,
    policy_batch: PolicyBatch,
    config: TrainConfig,
) -> StateDict:
    """Return the gradient of the mean loss of a batch in the parameters of every run's policy.

    Args:
        stack: Recommenders of all runs.
        policies: Policies of all runs.
        trace: Trace of a rollout that recorded the decision inputs.
        refresh_table: Refresh schedule by step.
        policy_batch: Decisions, and the predictions that give them credit.
        config: Names the form of credit and the estimator.

    Returns:
        One gradient per trainable parameter, with a leading axis of runs.
    """
    settings = config.policy_training
    credit = make_credit(
        settings.credit,
        length=settings.queue,
        discount=settings.discount,
        dropped_candidates=settings.dropped_candidates,
        schedule=config.sketch.schedule,
    )
    estimator = make_estimator(settings.estimator)
    size = config.sketch.size
    return estimate_gradients(
        stack, policies, trace, refresh_table, policy_batch, size, credit, estimator
    )


def estimate_gradients(
    stack: StackedRecommenders,
    policies: StackedPolicies,
    trace: StoredTrace,
    refresh_table: RefreshTable,
    policy_batch: PolicyBatch,
    size: int,
    credit: CreditAssignment,
    estimator: Estimator,
) -> StateDict:
    """Return the policy gradient for a given form of credit and a given estimator.

    Args:
        stack: Recommenders of all runs.
        policies: Policies of all runs.
        trace: Trace of a rollout that recorded the decision inputs.
        refresh_table: Refresh schedule by step.
        policy_batch: Decisions, and the predictions that give them credit.
        size: Sketch size K.
        credit: Form of credit assignment.
        estimator: Estimator of the gradient through a choice.

    Returns:
        One gradient per trainable parameter, with a leading axis of runs.
    """
    inputs = rebuild_inputs(trace, refresh_table, policy_batch.decided)
    batch = CreditedDecisions(
        stack, policies, trace, inputs, policy_batch.predicted, policy_batch.prediction_places,
        size,
    )  # fmt: skip
    names = policies.trainable
    state = {n: value.detach().requires_grad_(n in names) for n, value in policies.state.items()}
    with torch.enable_grad():
        signals = current_signals(stack, policies, inputs)
        scorer = policies.with_dropout_on if estimator.uses_dropout else policies
        scores = scorer.call(state, inputs.candidates, signals)
        value = _credit(estimator, credit, batch)
        terms = estimator.surrogate(scores, inputs, value, size)
        counted = (policy_batch.predicted >= 0).sum(1).clamp_min(1)
        surrogate = (terms.view(stack.runs, -1).sum(1) / counted).sum()
        found = torch.autograd.grad(surrogate, [state[name] for name in names])
    return dict(zip(names, found, strict=True))


@torch.no_grad()
def _credit(estimator: Estimator, credit: CreditAssignment, batch: CreditedDecisions) -> Tensor:
    """Return the constant that each decision's surrogate is multiplied with."""
    return estimator.value(credit, batch)
