"""What the parts of the library say about names, options and arguments that are not there.

>>> from weft.names import nearest_name
>>> nearest_name("acuracy", ["accuracy", "precision"])
'accuracy'
"""

from weft.core.deferred import NODES
from weft.core.names import explain_attributes, missing_from, nearest_name, suggestion, unknown_name
from weft.core.wrong_calls import explain_all, explain_arguments, takes_no_arguments, unknown_option

__all__ = [
    "NODES", "explain_all", "explain_arguments", "explain_attributes", "missing_from",
    "nearest_name", "suggestion", "takes_no_arguments", "unknown_name", "unknown_option",
]  # fmt: skip
