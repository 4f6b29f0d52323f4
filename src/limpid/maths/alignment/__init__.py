"""Losses of alignment, each a function of log-probabilities: preferences between answers, policy gradients."""

from limpid.maths.alignment.advantages import generalised_advantages as generalised_advantages
from limpid.maths.alignment.advantages import group_advantages as group_advantages
from limpid.maths.alignment.advantages import lambda_returns as lambda_returns
from limpid.maths.alignment.advantages import leave_one_out_advantages as leave_one_out_advantages
from limpid.maths.alignment.advantages import rewards_with_kl as rewards_with_kl
from limpid.maths.alignment.answers import answer_log_probability as answer_log_probability
from limpid.maths.alignment.answers import every as every
from limpid.maths.alignment.answers import masked_mean as masked_mean
from limpid.maths.alignment.answers import mean as mean
from limpid.maths.alignment.answers import tempered as tempered
from limpid.maths.alignment.answers import token_log_probabilities as token_log_probabilities
from limpid.maths.alignment.policy import grpo as grpo
from limpid.maths.alignment.policy import grpo_token_losses as grpo_token_losses
from limpid.maths.alignment.policy import kl_estimate as kl_estimate
from limpid.maths.alignment.policy import ppo as ppo
from limpid.maths.alignment.preference import dpo as dpo
from limpid.maths.alignment.preference import hinge_preference as hinge_preference
from limpid.maths.alignment.preference import implicit_reward as implicit_reward
from limpid.maths.alignment.preference import ipo as ipo
from limpid.maths.alignment.preference import kto as kto
from limpid.maths.alignment.preference import reward_loss as reward_loss
