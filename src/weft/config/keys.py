"""The keys of a configuration: the one place that says what a file may hold.

>>> from weft.config.keys import SCHEMA
>>> sorted(SCHEMA.tables)
['classifier', 'language_model', 'recommender']
"""

from __future__ import annotations

from inspect import Parameter, signature
from typing import Any

import weft as wf
from weft.config.columns import SEPARATOR
from weft.config.schema import (
    NEEDED,
    Choice,
    Flag,
    Items,
    Kind,
    Named,
    Number,
    Table,
    Tagged,
    Text,
    Whole,
)
from weft.optim.precision import PRECISIONS
from weft.train.strategies import STRATEGIES

__all__ = ["METRICS", "OPTIMIZERS", "SCHEMA"]

OPTIMIZERS = {
    name.lower(): getattr(wf.optim, name)
    for name in (
        "SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "RMSprop", "Lamb", "Lion", "Muon", "NAdam",
        "RAdam", "Adamax", "SparseAdam",
    )
}  # fmt: skip
METRICS = (
    "accuracy", "auc", "f1", "precision", "recall", "top_5", "mse", "mae", "r2", "perplexity",
)  # fmt: skip


def _optimizer_keys(kind: Any) -> dict[str, Kind]:
    """The settings of an optimiser, from its own parameters and their defaults."""
    keys: dict[str, Kind] = {}
    for name, parameter in signature(kind.__init__).parameters.items():
        default = parameter.default
        if default is Parameter.empty:
            continue
        meaning = f"see wf.optim.{kind.__name__}"
        if isinstance(default, bool):
            keys[name] = Flag(default, meaning)
        elif isinstance(default, int):
            keys[name] = Whole(default, meaning)
        elif isinstance(default, float):
            keys[name] = Number(default, meaning)
        elif isinstance(default, tuple) and all(isinstance(x, float) for x in default):
            keys[name] = Items(list(default), meaning, Number(NEEDED), len(default))
    return keys


# --- data ----------------------------------------------------------------------------------------

_SPLIT: dict[str, Kind] = {
    "validation": Number(0.2, "the part of the rows that is held out to judge by", 0.0, 0.9),
    "validation_path": Text("", "a file of such rows instead"),
    "order": Text("", "a column: the last rows of its order are held out, else random ones"),
}
_TABLE: dict[str, Kind] = {
    **_SPLIT,
    "path": Text(NEEDED, "the file, as seen from the folder of the configuration"),
    "join": Table(
        {
            "path": Text(NEEDED, "a CSV file with more columns"),
            "on": Text(NEEDED, "the column that both files have"),
            "columns": Items(NEEDED, "the columns to add", Text(NEEDED), 1),
        },
        "columns of another file",
        default=None,
    ),
    "history": Table(
        {
            "name": Text("history", "the new column"),
            "by": Text(NEEDED, "whose history: a column of users"),
            "of": Text(NEEDED, "of what: a column of items"),
            "order": Text(NEEDED, "a column of times"),
            "length": Whole(20, "how many items at most", 1),
        },
        "a column of what each user had before",
        default=None,
    ),
}
_TABLES = {
    "csv": Table({**_TABLE, "delimiter": Text(",", "what stands between cells")}),
    "parquet": Table(_TABLE),
    "clicks": Table(
        {
            **_SPLIT,
            "rows": Whole(2000, "how many clicks to make up", 10),
            "seed": Whole(0, "which ones"),
        }
    ),
}
_SETS = {
    "digits": Table({}, "handwritten digits, 8 x 8, inside of the package"),
    "iris": Table({}, "four lengths of flowers, inside of the package"),
    "idx": Table(
        {
            "images": Text(NEEDED, "an IDX file of images, as MNIST has them"),
            "labels": Text(NEEDED, "an IDX file of their classes"),
            "validation_images": Text(NEEDED, "images to judge by"),
            "validation_labels": Text(NEEDED, "their classes"),
        }
    ),
}
_TEXTS = {
    "text": Table(
        {
            "path": Text(NEEDED, "a file of text"),
            "validation": Number(0.1, "the last part of it, to judge by", 0.0, 0.9),
        }
    ),
    "shakespeare": Table({}, "plays, inside of the package"),
}

# --- features and targets ------------------------------------------------------------------------

_COLUMNS = Items([], "columns, as I1..I13 too; else the feature's name", Text(NEEDED))
_IDS: dict[str, Kind] = {
    "columns": _COLUMNS,
    "hash": Whole(0, "hash the cells to so many rows; 0 learns a vocabulary instead"),
    "least": Whole(1, "how often a cell must occur to be in the vocabulary", 1),
    "share": Text("", "the feature whose vectors are used, too"),
}
_FEATURE = Tagged(
    "kind",
    {
        "number": Table(
            {
                "columns": _COLUMNS,
                "transform": Choice("none", ["none", "log"], "log is log(1 + x) of positive x"),
                "scale": Choice(
                    "standard", ["standard", "range", "none"], "to mean 0 and deviation 1, or 0..1"
                ),
            }
        ),
        "category": Table(_IDS),
        "bucket": Table(
            {
                "columns": _COLUMNS,
                "boundaries": Items([], "where one bucket ends", Number(NEEDED)),
                "count": Whole(10, "without boundaries: so many buckets, equally full", 2),
            }
        ),
        "cross": Table(
            {
                **_IDS,
                "columns": Items(NEEDED, "the columns that are crossed", Text(NEEDED), 2),
                "hash": Whole(1000, "hash the pairs to so many rows; 0 learns a vocabulary"),
            }
        ),
        "sequence": Table(
            {
                **_IDS,
                "separator": Text(SEPARATOR, "what stands between the items of a cell"),
                "length": Whole(20, "how many items are kept: the last ones", 1),
                "pooling": Choice("mean", ["mean", "attention"], "attention is DIN's"),
                "target": Text("", "the feature that attends, for pooling by attention"),
            }
        ),
    },
    "what the feature is",
)
_TARGET = Table(
    {
        "column": Text("", "else the target's name"),
        "kind": Choice("binary", ["binary", "number"], "a click, or a number"),
        "at_least": Number(None, "binary: a number of at least this is a yes"),
        "weight": Number(1.0, "of its loss among several", 0.0),
    }
)
_CLASS = Table({"column": Text("", "else the target's name")})

# --- models --------------------------------------------------------------------------------------


def _widths(default: list[int], meaning: str = "widths of the hidden layers") -> Items:
    return Items(default, meaning, Whole(NEEDED, low=1))


_WIDTH = Whole(16, "the width of a vector", 1)
_DROPOUT = Number(0.0, "the part of hidden values that is dropped", 0.0, 0.99)
_RECOMMENDERS = Tagged(
    "kind",
    {
        "dlrm": Table({"width": _WIDTH, "bottom": _widths([64]), "top": _widths([64])}),
        "deepfm": Table({"width": _WIDTH, "hidden": _widths([64, 64]), "dropout": _DROPOUT}),
        "wide_deep": Table(
            {
                "width": _WIDTH,
                "hidden": _widths([64, 64]),
                "dropout": _DROPOUT,
                "wide": Items([], "features of the wide part; else all crosses", Text(NEEDED)),
            }
        ),
        "din": Table(
            {
                "width": _WIDTH,
                "hidden": _widths([64, 32]),
                "attention": _widths([32], "widths of the network that weighs the history"),
                "dropout": _DROPOUT,
            }
        ),
        "mmoe": Table(
            {
                "width": _WIDTH,
                "experts": Whole(4, "how many experts", 1),
                "expert": Items([64], "widths of an expert", Whole(NEEDED, low=1), 1),
                "tower": _widths([32], "widths of the network of one target"),
            }
        ),
    },
    "the network",
)
_CLASSIFIERS = Tagged(
    "kind",
    {
        "mlp": Table({"hidden": _widths([64]), "width": _WIDTH, "dropout": _DROPOUT}),
        "lenet": Table({}),
        "resnet18": Table({}),
    },
    "the network",
    default="mlp",
)
_TRANSFORMER: dict[str, Kind] = {
    "width": Whole(64, "of the vectors of tokens", 1),
    "layers": Whole(2, "how many", 1),
    "heads": Whole(2, "of attention", 1),
    "context": Whole(64, "tokens that are seen at once", 1),
}
_LANGUAGE_MODELS = Tagged(
    "kind",
    {
        "gpt": Table({**_TRANSFORMER, "dropout": _DROPOUT}),
        "llama": Table(_TRANSFORMER),
        "lstm": Table(
            {
                "width": Whole(64, "of the state", 1),
                "layers": Whole(1, "how many", 1),
                "context": Whole(64, "tokens of one example", 1),
                "dropout": _DROPOUT,
            }
        ),
    },
    "the network",
    default="gpt",
)

# --- training ------------------------------------------------------------------------------------

_STEPS = Whole(0, "how many steps; else all of the training")
_WARMUP = Whole(0, "steps of a straight way up before")
_TRAINING: dict[str, Kind] = {
    "optimizer": Tagged(
        "kind",
        {name: Table(_optimizer_keys(kind)) for name, kind in OPTIMIZERS.items()},
        "the rule of the updates",
        default="adam",
    ),
    "schedule": Tagged(
        "kind",
        {
            "constant": Table({"warmup": _WARMUP}),
            "cosine": Table({"warmup": _WARMUP, "steps": _STEPS, "end": Number(0.0, "rate", 0.0)}),
            "linear": Table({"warmup": _WARMUP, "steps": _STEPS, "end": Number(0.0, "rate", 0.0)}),
            "step": Table(
                {
                    "warmup": _WARMUP,
                    "every": Whole(NEEDED, "steps", 1),
                    "factor": Number(0.1, "of each step down", 0.0, 1.0),
                }
            ),
            "one_cycle": Table({"steps": _STEPS}),
        },
        "how the learning rate changes",
        default=None,
    ),
    "strategy": Table(
        {
            "kind": Choice("one", ["one", *STRATEGIES], "how processes of weft launch share"),
            "device": Text("", "where to compute: cpu, cuda, cuda:1"),
            "precision": Choice("float32", [*PRECISIONS], "of the network"),
            "accumulate": Whole(1, "batches to one update", 1),
            "clip_norm": Number(0.0, "the largest norm of the gradients; 0 for any", 0.0),
            "ema": Number(0.0, "the decay of an average of the weights; 0 for none", 0.0, 1.0),
            "compile": Flag(True, "whether steps are compiled"),
            "sparse": Flag(False, "update only those vectors that a batch touches"),
        }
    ),
    "train": Table(
        {
            "epochs": Whole(1, "how many", 1),
            "batch_size": Whole(32, "examples to a batch", 1),
            "seed": Whole(0, "of weights, order and dropout"),
            "folder": Text("", "for checkpoints; where the command is run"),
            "checkpoint_every": Whole(0, "steps; 0 for every epoch"),
            "keep_last": Whole(3, "checkpoints", 1),
            "board": Text("", "a folder for weft board"),
            "csv": Text("", "a file of a row for each epoch"),
            "json": Text("", "a file of a line for each step"),
            "tensorboard": Text("", "a folder for TensorBoard"),
            "plot": Text("", "a picture of the losses"),
            "quiet": Flag(False, "no progress"),
        }
    ),
    "evaluation": Table(
        {
            "metrics": Items(
                None, "what is measured; else what fits the targets", Choice(NEEDED, METRICS)
            ),
            "monitor": Text("val_loss", "what says which epoch is best"),
            "patience": Whole(0, "end after so many epochs without a better one; 0 never"),
            "keep_best": Flag(False, "keep a checkpoint of the best epoch"),
            "prompt": Text("", "language models: what a sample begins with"),
            "sample": Whole(0, "language models: tokens to write at the end"),
        }
    ),
    "export": Table(
        {
            "folder": Text(NEEDED, "where to write what is needed to use the model"),
            "forms": Items(
                ["weights"],
                "weights, an ONNX file, a library for C",
                Choice(NEEDED, ["weights", "onnx", "library"]),
                1,
            ),
        },
        "what is written at the end",
        default=None,
    ),
    "sweep": Table(
        {
            "folder": Text("", "where the trials are kept; else beside the configuration"),
            "method": Choice("random", ["random", "grid", "optuna"], "what is tried next"),
            "trials": Whole(20, "how many", 1),
            "seed": Whole(0, "of the choices"),
            "monitor": Text("", "the number that is best at the end; else evaluation.monitor"),
            "mode": Choice("", ["", "min", "max"], "whether less or more is better"),
            "space": Named(
                Table(
                    {
                        "choices": Items(None, "one of these", Kind(NEEDED), 1),
                        "low": Number(None, "the least of a range"),
                        "high": Number(None, "the most of a range"),
                        "log": Flag(False, "even over the logarithm"),
                        "whole": Flag(False, "whole numbers only"),
                    }
                ),
                "a key, and what may be chosen for it",
            ),
        },
        "what weft sweep tries",
        default=None,
    ),
}
SCHEMA = Tagged(
    "task",
    {
        "recommender": Table(
            {
                "data": Tagged("source", _TABLES, "where the rows come from"),
                "features": Named(_FEATURE, "what is known of a row"),
                "targets": Named(_TARGET, "what is to be found out"),
                "model": _RECOMMENDERS,
                **_TRAINING,
            }
        ),
        "classifier": Table(
            {
                "data": Tagged("source", {**_TABLES, **_SETS}, "where the examples come from"),
                "features": Named(_FEATURE, "what is known of a row"),
                "targets": Named(_CLASS, "the column of the classes"),
                "model": _CLASSIFIERS,
                **_TRAINING,
            }
        ),
        "language_model": Table(
            {
                "data": Tagged("source", _TEXTS, "where the text comes from"),
                "tokenizer": Table(
                    {
                        "kind": Choice("character", ["character", "byte", "pairs"], "of text"),
                        "vocabulary": Whole(1000, "pairs: how many pieces are learned", 257),
                    }
                ),
                "model": _LANGUAGE_MODELS,
                **_TRAINING,
            }
        ),
    },
    "what is trained",
)
