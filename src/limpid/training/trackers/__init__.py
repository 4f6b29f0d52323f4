"""Where else a run's metrics go: TensorBoard, Weights & Biases, trackio, behind one protocol."""

from limpid.training.trackers.tracker import NAMES as NAMES
from limpid.training.trackers.tracker import Tracker as Tracker
from limpid.training.trackers.tracker import Trackers as Trackers
from limpid.training.trackers.tracker import require_installed as require_installed
