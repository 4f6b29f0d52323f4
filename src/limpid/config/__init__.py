"""The configuration: the sections of options, and how files, flags and recipes become them."""

from limpid.config.model import Activation as Activation
from limpid.config.model import BasePrecision as BasePrecision
from limpid.config.model import ModelConfig as ModelConfig
from limpid.config.sampling import Sampling as Sampling
from limpid.config.sampling import WeightFormat as WeightFormat
from limpid.config.sections import DataConfig as DataConfig
from limpid.config.sections import OptimizerName as OptimizerName
from limpid.config.sections import Precision as Precision
from limpid.config.sections import RunConfig as RunConfig
from limpid.config.sections import ScheduleName as ScheduleName
from limpid.config.sections import Switch as Switch
from limpid.config.sections import TrainConfig as TrainConfig
from limpid.config.sections import UpdateConfig as UpdateConfig
from limpid.config.tuning import TuneConfig as TuneConfig
