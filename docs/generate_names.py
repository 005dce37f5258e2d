"""Write docs/coming_from_*.md: what the names of other libraries are called here.

The tables are those that error messages are made from, so a page and a message cannot disagree.

    python docs/generate_names.py
"""

from __future__ import annotations

from pathlib import Path

from weft.core.foreign import EVERYWHERE, OPTIONS, TABLES
from weft.core.foreign.jax_names import JAX
from weft.core.foreign.keras_names import KERAS
from weft.core.foreign.numpy_names import NUMPY
from weft.core.foreign.torch_names import TORCH

FOLDER = Path(__file__).parent

PYTORCH = """\
# Coming from PyTorch

Modules, optimisers and data loaders have PyTorch's names and its state dictionaries; arrays have
NumPy's names and options. Code moves over with few changes:

```python
import weft as wf
from weft import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x):
        return self.body(x)

net = Net()
optimizer = wf.optim.AdamW(net.parameters(), lr=1e-2)

@wf.jit                                    # the whole step is one program
def step(net, optimizer, x, y):
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss

x, y = wf.random.normal((8, 4)), wf.random.randint(0, 3, (8,))
first = step(net, optimizer, x, y).item()
for _ in range(20):
    last = step(net, optimizer, x, y).item()
assert last < first
```

What to know:

- **Options** are `axis` and `keepdims`, as in NumPy, and passed by name: `wf.sum(x, axis=1)`.
  Methods take an axis by position, too: `x.sum(1)`.
- **Shapes** are one argument: `wf.zeros((2, 3))`, `wf.random.normal((2, 3))`.
- **Values.** A tensor is a value: `x += y` and `x.add_(y)` write to the handle `x` and to nothing
  else. A part that was taken by an index is a tensor of its own; write to it by the index, `x[0]
  = 1`.
- **`var` and `std`** divide by n, as NumPy's; `correction=1` is PyTorch's default.
- **What would mean something else** is refused with both spellings: `x.transpose(0, 1)`,
  `x.split(2)`, `x.repeat(2)`.
- **Weights.** `wf.load("model.pt")` reads state dictionaries that `torch.save` wrote, without
  PyTorch and without running code from the file.
"""

JAX_PAGE = """\
# Coming from JAX

Transforms have JAX's names and compose as they do there: `wf.jit`, `wf.grad`,
`wf.value_and_grad`, `wf.vjp`, `wf.jvp`, `wf.vmap`, `wf.hessian`, `wf.scan`, `wf.while_loop`,
`wf.cond`.

```python
import weft as wf

def loss(w, x, y):
    return ((x @ w - y) ** 2).mean()

x, y = wf.random.normal((8, 3), key=wf.random.key(0)), wf.ones(8)
gradient = wf.jit(wf.grad(loss))
w = wf.zeros(3)
for _ in range(100):
    w = w - 0.1 * gradient(w, x, y)
assert loss(w, x, y).item() < loss(wf.zeros(3), x, y).item()

per_example = wf.vmap(wf.grad(loss), in_axes=(None, 0, 0))
assert per_example(w, x[:, None], y[:, None]).shape == (8, 3)
```

What to know:

- **State.** Modules and optimisers are trees that a compiled function may write to; what it
  writes is written back after the call. Pure functions work as they do in JAX.
- **Python numbers** that a compiled function is given or closes over are part of the program, and
  are read at each call. Write one that changes in every call as a tensor:
  `step(w, wf.tensor(rate))`.
- **Random numbers** take `key=`; without one a global generator gives it, and `wf.random.seed`
  begins anew.
- **float64** needs no switch: `wf.zeros(3, dtype="float64")`.
- **Indexed updates** are assignments: `x[i] = y` rebinds `x`; `wf.index_add(x, 0, i, y)` is
  `x.at[i].add(y)`.
"""

KERAS_PAGE = """\
# Coming from Keras and TensorFlow

Layers have PyTorch's names and are told the size of their input, or take it from the first batch
(`wf.nn.LazyLinear`). `wf.train.Trainer` is the counterpart of `compile` and `fit`.

```python
import weft as wf

net = wf.nn.Sequential(wf.nn.Linear(4, 16, activation="relu"), wf.nn.Linear(16, 3))
optimizer = wf.optim.Adam(net.parameters(), lr=1e-2)
trainer = wf.train.Trainer(
    net, wf.nn.functional.cross_entropy, optimizer, metrics=["accuracy"], progress=False
)
train = wf.data.ArrayDataset(wf.data.sets.load_iris().train)
history = trainer.fit(wf.data.DataLoader(train, batch_size=32, shuffle=True), epochs=2)
assert len(history) == 2
```

What to know:

- **Images** are `[batch, channels, height, width]`; the compiler turns them as it likes.
- **Losses** take logits where their names say so: `CrossEntropyLoss`, `BCEWithLogitsLoss`.
- **Static graphs** of TensorFlow 1 are `wf.Graph`, `wf.placeholder`, `wf.Session`.
"""

NUMPY_PAGE = """\
# Coming from NumPy

Functions have NumPy's and the Array API's names, options and broadcasting; `x.numpy()` and
`wf.asarray(array)` go to and fro. Tensors are float32 where no dtype is given, and options are
passed by name.

```python
import numpy as np
import weft as wf

x = wf.asarray(np.linspace(0.0, 1.0, 5))
assert wf.mean(x, axis=0).item() == 0.5
assert isinstance(x.numpy(), np.ndarray)
```
"""

PAGES: dict[str, tuple[str, dict[str, dict[str, str]]]] = {
    "coming_from_pytorch.md": (PYTORCH, TORCH),
    "coming_from_jax.md": (JAX_PAGE, JAX),
    "coming_from_keras.md": (KERAS_PAGE, KERAS),
    "coming_from_numpy.md": (NUMPY_PAGE, NUMPY),
}
"""Each page: what is written by hand, and the tables below it."""

HEAD = """\
## Names that differ

Names that are not listed are the same here, or `wf.` says what to write when they are missing. In
the calls `x` and `y` are tensors, `v` and `w` lines, `i` integers.
"""


def render(name: str) -> str:
    """One page."""
    text, tables = PAGES[name]
    parts = [text, HEAD]
    for space, table in tables.items():
        rows = [f"| `{key}` | {_cell(table[key])} |" for key in sorted(table, key=str.lower)]
        parts.append("\n".join([f"### `{space}`", "", "| there | here |", "|---|---|", *rows, ""]))
    if name == "coming_from_pytorch.md":
        parts.append(_options())
    return "\n".join(parts)


def _cell(call: str) -> str:
    """A call as code, and its remark as words."""
    code, _, remark = call.partition("#")
    code, remark = code.strip().replace("|", "\\|"), remark.strip().replace("|", "\\|")
    return ", ".join(filter(None, [f"`{code}`" if code else "", remark]))


def _options() -> str:
    """The table of options."""
    rows = [f"| `{there}` | `{here}` |" for there, here in sorted(EVERYWHERE.items())]
    special = [
        f"| `{function}({there if '=' in there else f'{there}=...'})` "
        f"| {_cell(text.replace('{value}', '...'))} |"
        for function, options in sorted(OPTIONS.items())
        for there, text in options.items()
    ]
    head = ["## Options that differ", "", "| there | here |", "|---|---|"]
    return "\n".join([*head, *rows, *special, ""])


if __name__ == "__main__":
    for page in PAGES:
        (FOLDER / page).write_text(render(page), encoding="utf-8")
    print(f"{sum(map(len, TABLES.values()))} names on {len(PAGES)} pages")
