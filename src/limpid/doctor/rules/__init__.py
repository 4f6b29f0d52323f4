"""Every fault the doctor knows, one file per symptom; a rule is one object, and all of it is in its file.

The order is that in which functions look at a step; of a step that broke, the first explanation is believed.
"""

from __future__ import annotations

from limpid.doctor.rule import Rule
from limpid.doctor.rules import (
    accumulation,
    adam,
    answer_mask,
    attention,
    clipping,
    configuration,
    custom_functions,
    distributed,
    evaluation,
    gradient_flow,
    gradients,
    group_rates,
    initialisation,
    labels,
    leaks,
    learning_rate,
    logits,
    loss,
    loss_arguments,
    loss_curve,
    loss_level,
    loss_scaling,
    low_rank,
    mixture,
    moments,
    optimizer,
    overflow,
    padding,
    padding_counts,
    pairs,
    policy,
    positions,
    preference,
    rewards,
    rows,
    schedule,
    schedule_order,
    token_ids,
    units,
    updates,
)

FAMILIES = (
    optimizer,
    adam,
    moments,
    labels,
    padding,
    padding_counts,
    token_ids,
    rows,
    mixture,
    leaks,
    custom_functions,
    gradients,
    gradient_flow,
    units,
    initialisation,
    attention,
    positions,
    loss,
    loss_arguments,
    accumulation,
    logits,
    schedule,
    schedule_order,
    group_rates,
    configuration,
    evaluation,
    clipping,
    loss_scaling,
    overflow,
    distributed,
    updates,
    learning_rate,
    loss_curve,
    loss_level,
    preference,
    pairs,
    policy,
    rewards,
    answer_mask,
    low_rank,
)

RULES: dict[str, Rule] = {
    rule.slug: rule
    for family in FAMILIES
    for rule in vars(family).values()
    if isinstance(rule, Rule) and rule.family == family.FAMILY
}
