"""Training: the trainer, metrics, callbacks, logs, checkpoints, and searches for good settings.

    trainer = wf.train.Trainer(model, loss, optimizer, metrics=["accuracy"])
    history = trainer.fit(loader, epochs=10, validation=held_out)

>>> import weft as wf
>>> wf.train.Accuracy().name
'accuracy'
"""

from weft.names import explain_all as _explain_all
from weft.names import missing_from as _missing_from
from weft.train.automatic import AutoStrategy
from weft.train.callbacks import (
    BestCheckpoint,
    Callback,
    EarlyStopping,
    LambdaCallback,
    LearningRateLogger,
    ScheduleCallback,
)
from weft.train.checkpoints import Checkpoint, CheckpointError, CheckpointFolder
from weft.train.classification import AUC, F1, ConfusionMatrix, Precision, Recall
from weft.train.debugging import StopOnNan
from weft.train.distillation import Distillation
from weft.train.events import EventWriter
from weft.train.history import History
from weft.train.live import LiveCurves
from weft.train.loggers import CSVLogger, Histograms, JSONLogger, TensorBoard
from weft.train.mesh_strategy import MeshStrategy
from weft.train.metrics import (
    MAE,
    MSE,
    R2,
    Accuracy,
    Mean,
    Metric,
    Perplexity,
    TopK,
    as_metrics,
    register_metric,
)
from weft.train.pipeline_strategy import PipelineStrategy
from weft.train.plots import plot
from weft.train.progress import Progress
from weft.train.run_log import RunLog
from weft.train.searching import (
    Trial,
    cross_validate,
    find_lr,
    halving_search,
    optuna_search,
    random_search,
)
from weft.train.strategies import LocalStrategy
from weft.train.trackers import MLflowLogger, WandbLogger
from weft.train.trainer import Trainer

__all__ = [
    "AUC", "F1", "MAE", "MSE", "R2", "Accuracy", "AutoStrategy", "BestCheckpoint", "CSVLogger",
    "Callback", "Checkpoint", "CheckpointError", "CheckpointFolder", "ConfusionMatrix",
    "Distillation", "EarlyStopping", "EventWriter", "Histograms", "History", "JSONLogger",
    "LambdaCallback",
    "LearningRateLogger", "LiveCurves", "LocalStrategy", "MLflowLogger", "Mean", "MeshStrategy",
    "Metric", "Perplexity", "PipelineStrategy", "Precision", "Progress", "Recall", "RunLog",
    "ScheduleCallback", "StopOnNan", "TensorBoard", "TopK", "Trainer", "Trial", "WandbLogger",
    "as_metrics", "cross_validate", "find_lr", "halving_search", "optuna_search", "plot",
    "random_search", "register_metric",
]  # fmt: skip

_explain_all(globals(), __all__)
__getattr__ = _missing_from("wf.train", __all__)
