"""Names and habits of other libraries."""

from tests.mistakes.entry import Family, mistake

import weft as wf
from weft import (
    ArgumentTypeError,
    ImportNameError,
    NameUnknownError,
    ShapeError,
)

FAMILY: Family = []


@mistake(
    FAMILY,
    "An import of a name that is called otherwise here",
    ImportNameError,
    "from weft.nn import Dense",
    problem="nothing is called 'Dense'",
    expected="a name in dir(wf.nn)",
    got="name: Dense",
    fix="wf.nn.Linear(3, 8, activation='relu')",
)
def import_of_a_foreign_name() -> None:
    from weft.nn import Dense  # noqa: F401


@mistake(
    FAMILY,
    "An import of a module that is called otherwise here",
    ImportNameError,
    "import weft.utils",
    problem="there is no module 'weft.utils'",
    expected="a module of the library",
    got="name: utils",
    fix="wf.data  # for torch.utils.data",
)
def import_of_a_foreign_module() -> None:
    import weft.utils.data  # noqa: F401


@mistake(
    FAMILY,
    "A function of PyTorch",
    NameUnknownError,
    "wf",
    problem="nothing is called 'cat'",
    expected="a name in dir(wf)",
    got="name: cat",
    fix="wf.concat([x, y], axis=0)",
)
def foreign_function() -> None:
    wf.cat([wf.ones(2), wf.ones(3)])


@mistake(
    FAMILY,
    "An option of PyTorch",
    ArgumentTypeError,
    "sum",
    problem="dim is called axis here, as in NumPy",
    expected="axis=",
    got="dim: 1",
    fix="axis=1",
)
def foreign_option() -> None:
    wf.ones((2, 3)).sum(dim=1)


@mistake(
    FAMILY,
    "Values and places of a maximum at once",
    ShapeError,
    "unpacking",
    problem="2 names for a tensor of 3 rows",
    expected="3 names, or one",
    got="x: f32[3]",
    fix="values = x.max(axis=1), places = x.argmax(axis=1)",
)
def unpacked_maximum() -> None:
    _values, _places = wf.ones((3, 4)).max(axis=1)


@mistake(
    FAMILY,
    "An attribute of PyTorch's optimisers",
    NameUnknownError,
    "SGD",
    problem="nothing is called 'param_groups'",
    expected="a name in dir(optimizer)",
    got="name: param_groups",
    fix="optimizer.groups",
)
def groups_of_an_optimiser() -> None:
    optimizer = wf.optim.SGD(wf.nn.Linear(2, 2).parameters(), lr=0.1)
    optimizer.param_groups[0]["lr"] = 0.01


@mistake(
    FAMILY,
    "A key in JAX's place",
    ArgumentTypeError,
    "normal",
    problem="a key is passed by name",
    expected="the shape first",
    got="arguments: ",
    fix="wf.random.normal((2, 3), key=key)",
)
def key_first() -> None:
    wf.random.normal(wf.random.key(0), (2, 3))


@mistake(
    FAMILY,
    "A list of layers, as in Keras",
    ArgumentTypeError,
    "Sequential",
    problem="modules are arguments, not a list",
    expected="Sequential(module, module, ...)",
    got="module: ",
    fix="wf.nn.Sequential(*modules)",
)
def list_of_layers() -> None:
    wf.nn.Sequential([wf.nn.Linear(2, 2), wf.nn.ReLU()])


@mistake(
    FAMILY,
    "Fitting without a trainer, as in Keras",
    NameUnknownError,
    "Linear",
    problem="this module has nothing called 'fit'",
    expected="an attribute that was set, or a method of modules",
    got="name: fit",
    fix="wf.train.Trainer(net, loss_fn, optimizer).fit(batches, epochs=1)",
)
def fit_of_a_network() -> None:
    wf.nn.Linear(2, 1).fit(wf.ones((4, 2)), wf.ones((4, 1)))
