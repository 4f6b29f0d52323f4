"""The configuration: the sections of options, and how files, flags and recipes become them."""

from limpid.config.sections import Activation as Activation
from limpid.config.sections import DataConfig as DataConfig
from limpid.config.sections import ModelConfig as ModelConfig
from limpid.config.sections import OptimizerName as OptimizerName
from limpid.config.sections import Precision as Precision
from limpid.config.sections import RunConfig as RunConfig
from limpid.config.sections import Sampling as Sampling
from limpid.config.sections import ScheduleName as ScheduleName
from limpid.config.sections import Switch as Switch
from limpid.config.sections import TrainConfig as TrainConfig
from limpid.config.sections import UpdateConfig as UpdateConfig
from limpid.config.sections import WeightFormat as WeightFormat
