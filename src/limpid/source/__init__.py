"""What a user can name: a run, a checkpoint, a model folder or its name on the hub, an adapter, a recorded step."""

from limpid.run import Run as Run
from limpid.source.find import find_checkpoint as find_checkpoint
from limpid.source.find import find_model as find_model
from limpid.source.find import find_run as find_run
from limpid.source.find import find_source as find_source
from limpid.source.find import find_step as find_step
from limpid.source.find import open_source as open_source
from limpid.source.kinds import KEPT as KEPT
from limpid.source.kinds import RECORDING as RECORDING
from limpid.source.kinds import Adapted as Adapted
from limpid.source.kinds import Checkpoint as Checkpoint
from limpid.source.kinds import KeptRecording as KeptRecording
from limpid.source.kinds import Model as Model
from limpid.source.kinds import ModelFolder as ModelFolder
from limpid.source.kinds import RecordedStep as RecordedStep
from limpid.source.kinds import Source as Source
from limpid.source.kinds import is_recorded_step as is_recorded_step
from limpid.source.runs import known_runs as known_runs
from limpid.source.runs import last_run as last_run
from limpid.source.runs import namesake as namesake
