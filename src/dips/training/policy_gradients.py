"""The policy's gradient from a batch of decisions: credit of the choices times slope of the choice.

Credit is the effect of an interaction's weight on later predictions (dips.credit); the slope is
that of a soft choice, or of the log-probability of the choice made (REINFORCE).
"""

from __future__ import annotations

import torch
from torch import Tensor

from dips.credit.adjoint import Effect, effect_of
from dips.credit.queue import When, queue_credit, windowed
from dips.credit.survival import survival_credit
from dips.numerics.fixed_point import PARAMETER_BITS, quantize
from dips.numerics.straight_through import gumbel_keep, log_removal, soft_keep
from dips.policy.stacked import StackedPolicies
from dips.recommender.base import Evidence, Recommender
from dips.recommender.stacked import StackedRecommenders, StateDict
from dips.rollout.trace import StoredTrace
from dips.sketch.records import Candidates
from dips.sketch.selection import gumbel_noise
from dips.training.config import TrainConfig
from dips.training.policy_batches import (
    Clock,
    DecisionInputs,
    PolicyBatch,
    rebuild_inputs,
    with_dropped_candidates,
)


def policy_gradients(
    stack: StackedRecommenders, policies: StackedPolicies, trace: StoredTrace, clock: Clock, policy_batch: PolicyBatch,
    config: TrainConfig,
) -> StateDict:  # fmt: skip
    """Gradient of the mean loss of the lesson's predictions in every run's policy."""
    runs = stack.runs
    losses, effect = _effects(stack, trace, policy_batch.predicted)
    asked = rebuild_inputs(trace, clock, policy_batch.decided)
    names = policies.trainable
    state = {n: value.detach().requires_grad_(n in names) for n, value in policies.state.items()}
    with torch.enable_grad():
        answers = _answers(stack, policies, asked)
        drawn = config.policy_training.estimator != "straight-through"  # as it was drawn: without dropout
        asker = policies if drawn else policies.with_dropout_on
        scores = asker.call(state, asked.candidates, answers)
        if config.policy_training.estimator == "reinforce":
            gain = _advantage(losses, policy_batch, asked, config)
            gone = (asked.candidates.present & ~asked.kept).long().argmax(1)
            chance = log_removal(scores, asked.candidates.present, gone)
            terms = gain * torch.where(asked.owner >= 0, chance, 0.0)
        else:
            step = trace.step[policy_batch.predicted.clamp_min(0)]
            credit = _credit(stack, policies, policy_batch, effect, step, asked, config)
            present = asked.candidates.present
            if config.policy_training.estimator == "gumbel":
                noise = gumbel_noise(asked.candidates)
                soft = gumbel_keep(scores, noise, present, config.sketch.size, 1.0)
            else:
                soft = soft_keep(scores, present, config.sketch.size)
            terms = (credit * torch.where(present, soft, 0.0)).sum(1)
        counted = (policy_batch.predicted >= 0).sum(1).clamp_min(1)
        surrogate = (terms.view(runs, -1).sum(1) / counted).sum()
        found = torch.autograd.grad(surrogate, [state[name] for name in names])
    return dict(zip(names, found, strict=True))


def _effects(
    stack: StackedRecommenders, trace: StoredTrace, predicted: Tensor
) -> tuple[Tensor, Effect]:
    """Loss [runs, rows] of each prediction, and what weights do to it."""
    place = predicted.clamp_min(0)
    event = trace.event[place]
    target = (trace.columns.token[event], trace.columns.rating[event])

    def ask(
        model: Recommender, item: Tensor, rating: Tensor, weight: Tensor, slots: Tensor,
        age: Tensor, repeats: Tensor, next_item: Tensor, next_rating: Tensor,
    ) -> tuple[Tensor, Effect]:  # fmt: skip
        past = Evidence(item, rating, weight, slots, age, repeats)
        return effect_of(model, past, next_item, next_rating)

    with torch.no_grad():
        found: tuple[Tensor, Effect] = stack.call(ask, *trace.evidence(place), *target)
    return found


def _credit(
    stack: StackedRecommenders, policies: StackedPolicies, policy_batch: PolicyBatch, effect: Effect, step: Tensor, asked: DecisionInputs,
    config: TrainConfig,
) -> Tensor:  # fmt: skip
    """[runs * decisions, candidates] what more weight would do to the losses that follow.

    `step` [runs, rows] of the predictions.
    """
    runs, width = stack.runs, asked.kept.shape[1]
    owner = asked.owner.view(runs, -1)

    def value(entries: Candidates, length: int, discount: float) -> Tensor:
        def ask(
            model: Recommender, effect: Effect, held: Tensor, owner: Tensor, item: Tensor,
            rating: Tensor, *when: Tensor,
        ) -> Tensor:  # fmt: skip
            terms = (held, owner, item, rating, length, discount, When(*when))
            return queue_credit(model, effect, *terms)

        fields = (entries.token, entries.rating, entries.position, entries.repeats)
        split = [field.view(runs, -1, field.shape[1]) for field in fields]
        credit: Tensor = stack.call(ask, effect, policy_batch.held, owner, *split, step)
        return credit.flatten(0, 1)

    with torch.no_grad():
        if config.policy_training.credit != "survival":
            discount = config.policy_training.discount if config.policy_training.credit == "discount" else 1.0
            return value(asked.candidates, config.policy_training.queue, discount)
        dropped_candidates = config.policy_training.dropped_candidates if policies.takes_weights else 0
        tracked, weight = with_dropped_candidates(asked, dropped_candidates, width - config.sketch.size)
        entries, answers = tracked.candidates, _answers(stack, policies, tracked)
        scores = policies.call(
            policies.state, entries, answers, weight if policies.takes_weights else None
        )
        return survival_credit(
            value(entries, 1, 1.0),
            scores,
            weight,
            entries.present,
            entries.position,
            asked.owner,
            config.sketch.size,
            config.policy_training.queue,
            bounded=True,
            online=width == config.sketch.size + 1,
        )[:, :width]


def _answers(
    stack: StackedRecommenders, policies: StackedPolicies, asked: DecisionInputs
) -> dict[str, Tensor]:
    """The signals that the policy sees: as noted on the walk, and the items' vectors as of now."""
    if "embedding" not in policies.required_signals:
        return asked.answers
    item = asked.candidates.item
    split = item.view(stack.runs, -1, item.shape[1])
    vectors: Tensor = stack.call(lambda model, items: model.embedding(items), split)
    return {**asked.answers, "embedding": quantize(vectors.flatten(0, 1), PARAMETER_BITS)}


def _advantage(
    losses: Tensor, policy_batch: PolicyBatch, asked: DecisionInputs, config: TrainConfig
) -> Tensor:
    """[runs * decisions] losses that followed a choice, less those of an average prediction."""
    runs = len(losses)
    discount = config.policy_training.discount if config.policy_training.credit == "discount" else 1.0
    there = (policy_batch.held >= 0).to(losses.dtype)  # [runs, decisions, hold]
    held = losses.gather(1, policy_batch.held.clamp_min(0).flatten(1)).view(there.shape) * there
    owner = asked.owner
    total = windowed(held.sum(2).flatten(), owner, config.policy_training.queue, discount)
    count = windowed(there.sum(2).flatten(), owner, config.policy_training.queue, discount)
    mean = held.sum((1, 2)) / there.sum((1, 2)).clamp_min(1)  # [runs]
    return total - count * mean.repeat_interleave(len(owner) // runs)
