"""Data: what models learn from, and how it gets from files into batches.

>>> from weft import data
>>> train = data.ArrayDataset(data.sets.load_iris().train)
>>> loader = data.DataLoader(train, batch_size=32, shuffle=True, seed=0)
>>> batch = next(iter(loader))
>>> batch.inputs.shape, batch.labels.shape
((32, 4), (32,))
"""

from weft.data import sets
from weft.data.arrow import (
    ParquetRows,
    from_arrow,
    from_huggingface,
    read_arrow,
    read_parquet,
    to_arrow,
)
from weft.data.collate import default_collate, pad_collate
from weft.data.dataset import (
    ArrayDataset,
    Dataset,
    Subset,
    TensorDataset,
    random_split,
)
from weft.data.frames import from_frame
from weft.data.idx import from_idx, read_idx
from weft.data.images import ImageFolder, read_image
from weft.data.loader import DataLoader
from weft.data.samplers import (
    BatchSampler,
    BucketSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    StratifiedSampler,
    WeightedSampler,
)
from weft.data.scope import WorkerInfo, item_generator, worker_info
from weft.data.sql import SQLRows, read_sql
from weft.data.stream import IterableDataset, as_dataset, from_iterable
from weft.data.tables import CSVRows, from_csv, read_csv
from weft.data.text import TextLines, TokenWindows, tokenize_file
from weft.data.tokenizers import (
    BytePairTokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
)
from weft.data.workers import WorkerError
from weft.names import explain_all as _explain_all
from weft.names import missing_from as _missing_from

__all__ = [
    "ArrayDataset", "BatchSampler", "BucketSampler", "BytePairTokenizer", "ByteTokenizer",
    "CSVRows", "CharacterTokenizer", "DataLoader", "Dataset", "DistributedSampler", "ImageFolder",
    "IterableDataset", "ParquetRows", "RandomSampler", "SQLRows", "Sampler", "SequentialSampler",
    "StratifiedSampler", "Subset", "TensorDataset", "TextLines", "TokenWindows", "Tokenizer",
    "WeightedSampler", "WorkerError", "WorkerInfo", "as_dataset", "default_collate", "from_arrow",
    "from_csv", "from_frame", "from_huggingface", "from_idx", "from_iterable", "item_generator",
    "pad_collate", "random_split", "read_arrow", "read_csv", "read_idx", "read_image",
    "read_parquet", "read_sql", "sets", "to_arrow", "tokenize_file", "worker_info",
]  # fmt: skip

_explain_all(globals(), __all__)
__getattr__ = _missing_from("wf.data", __all__)
