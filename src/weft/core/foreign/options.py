"""What the options of other libraries are called here.

`EVERYWHERE` holds for each function that has the option on the right; `OPTIONS` says more about one
function. A value is the option as it is written here, with `{value}` for what was given, or a
remark behind `#` where there is none.

>>> from weft.core.foreign.options import EVERYWHERE, OPTIONS
>>> EVERYWHERE["dim"], OPTIONS["scaled_dot_product_attention"]["is_causal"]
('axis', 'causal=True')
"""

from __future__ import annotations

EVERYWHERE: dict[str, str] = {
    "alpha": "negative_slope",
    "attn_mask": "mask",
    "beta_1": "betas",
    "beta_2": "betas",
    "clipnorm": "clip_norm",
    "clipvalue": "clip_value",
    "collate_fn": "collate",
    "ddof": "correction",
    "dilation_rate": "dilation",
    "dim": "axis",
    "dim0": "axis1",
    "dim1": "axis2",
    "dims": "axes",
    "dropout_p": "dropout",
    "end_dim": "end_axis",
    "epsilon": "eps",
    "filters": "out_channels",
    "gamma": "factor",
    "initial_accumulator_value": "initial",
    "input": "x",
    "is_causal": "causal",
    "keep_dims": "keepdims",
    "keepdim": "keepdims",
    "learning_rate": "lr",
    "max_iter": "max_iterations",
    "max_eval": "max_evaluations",
    "history_size": "history",
    "line_search_fn": "line_search",
    "min_lr": "least",
    "norm_type": "ord",
    "output_dim": "embedding_dim",
    "pool_size": "kernel_size",
    "prefetch_factor": "prefetch",
    "rate": "p",
    "reps": "repetitions",
    "size": "shape",
    "split_size": "size",
    "split_size_or_sections": "size",
    "start_dim": "start_axis",
    "step_size": "every",
    "strides": "stride",
    "units": "out_features",
    "worker_init_fn": "worker_init",
    "T_0": "steps",
    "T_max": "steps",
    "total_steps": "steps",
    "eta_min": "end",
    "max_lr": "lr",
    "pct_start": "rise",
    "div_factor": "begin",
    "final_div_factor": "finish",
    "T_mult": "times",
    "total_iters": "steps",
    "diagonal": "k",
    "offset": "k",
    "other": "x2",
}  # fmt: skip
"""What an option is called here, in every function that has it."""

OPTIONS: dict[str, dict[str, str]] = {
    "scaled_dot_product_attention": {
        "is_causal": "causal=True",
        "is_causal=False": "causal=False",
        "enable_gqa": "# heads of keys and values are repeated by themselves: leave it out",
    },
    "var": {
        "unbiased": "correction=1",
        "unbiased=False": "correction=0",
        "dim": "axis={value}, correction=1  # PyTorch divides by n - 1, NumPy and Weft by n",
    },
    "std": {
        "unbiased": "correction=1",
        "unbiased=False": "correction=0",
        "dim": "axis={value}, correction=1  # PyTorch divides by n - 1, NumPy and Weft by n",
    },
    "max": {"dim": "axis={value}  # the values alone; their places: x.argmax(axis={value})"},
    "min": {"dim": "axis={value}  # the values alone; their places: x.argmin(axis={value})"},
    "sort": {"dim": "axis={value}  # the values alone; their places: x.argsort(axis={value})"},
    "median": {
        "dim": "axis={value}  # the values alone, of an even number the mean of the middle two",
    },
    "div": {"rounding_mode": "# x // y for 'floor', wf.trunc(x / y) for 'trunc'"},
    "softmax": {"dtype": "# convert first: wf.softmax(x.astype('float32'), axis=-1)"},
    "log_softmax": {"dtype": "# convert first: wf.log_softmax(x.astype('float32'), axis=-1)"},
    "mean": {"dtype": "# convert first: wf.mean(x.astype('float32'))"},
    "DataLoader": {
        "collate_fn": "collate=function",
        "pin_memory": "device='cuda'  # through pinned memory; without a card leave it out",
        "pin_memory=False": "# leave it out",
        "pin_memory_device": "device='cuda'",
        "worker_init_fn": "worker_init=function",
        "prefetch_factor": "prefetch=2",
        "generator": "seed=0",
        "multiprocessing_context": "start_method='spawn'",
        "timeout": "# there is none: a worker that dies is an error at once",
    },
    "random_split": {"generator": "seed=0", "lengths": "parts=[0.8, 0.2]"},
    "split": {"num": "n=2"},
    "linspace": {"steps": "num=5"},
    "Cyclic": {
        "base_lr": "start=0.01",
        "max_lr": "end=0.1",
        "step_size_up": "steps=2000",
        "step_size_down": "down=2000",
        "mode": "# 'triangular2' is shrink=0.5, 'exp_range' is factor=0.99",
        "cycle_momentum": "# there is none: wf.optim.schedules.Scheduler(optimizer, schedule, "
        "'momentum')",
    },
    "OneCycle": {"steps_per_epoch": "steps=100  # of all epochs", "epochs": "steps=100  # of all"},
    "fit": {
        "x": "data=(x, y)",
        "validation_data": "validation=(x, y)",
        "validation_split": "# divide first: wf.data.random_split(dataset, [0.8, 0.2])",
        "verbose": "# wf.train.Trainer(net, loss, optimizer, progress=False)",
        "callbacks": "# the trainer has them: wf.train.Trainer(net, loss, optimizer, callbacks=[])",
        "shuffle": "# data are shuffled anew in each epoch; a DataLoader keeps its own order",
        "initial_epoch": "resume=True",
    },
    "zeros": {"requires_grad": "# behind it: wf.zeros(3).requires_grad_()", "size": "shape=(2, 3)"},
    "ones": {"requires_grad": "# behind it: wf.ones(3).requires_grad_()", "size": "shape=(2, 3)"},
    "normal": {
        "requires_grad": "# behind it: wf.random.normal((2, 3)).requires_grad_()",
        "size": "shape=(2, 3)",
        "loc": "mean=0.0",
        "scale": "std=1.0",
        "generator": "key=wf.random.key(0)",
    },
    **{
        name: {"requires_grad": "# behind it: .requires_grad_()"}
        for name in (
            "arange", "empty", "empty_like", "eye", "full", "full_like", "linspace", "ones_like",
            "zeros_like", "randint", "bernoulli", "asarray",
        )
    },
    "uniform": {
        "requires_grad": "# behind it: wf.random.uniform((2, 3)).requires_grad_()",
        "size": "shape=(2, 3)",
        "generator": "key=wf.random.key(0)",
    },
    "meshgrid": {"sparse": "# all are broadcast: leave it out"},
    "load_state_dict": {"assign": "# values are assigned, not copied, in any case: leave it out"},
    "load": {
        "map_location": "device='cpu'",
        "weights_only": "# files hold no code: leave it out",
        "weights_only=False": "# a file holds values, no code, and a network comes back as its "
        "values: net.load_state_dict(wf.load(path))",
        "mmap": "map_file=True",
    },
    "jit": {
        "static_argnums": "static_argnames=('flag',)",
        "donate_argnums": "# memory is given up by itself where nobody holds it: leave it out",
        "mode": "# there is one way to compile: leave it out",
        "fullgraph": "# the whole function is one graph in any case: leave it out",
        "dynamic": "# sizes that change become symbols by themselves: leave it out",
        "backend": "# there is one compiler: leave it out",
    },
    "Embedding": {
        "sparse": "# gradients of rows are small by wf.optim.take_rows: leave it out",
        "scale_grad_by_freq": "# there is none: leave it out",
    },
    "interpolate": {
        "recompute_scale_factor": "# leave it out",
        "antialias": "# there is none: blur first",
    },
    "SGD": {"foreach": "# all updates are one launch: leave it out",
            "fused": "# all updates are one launch: leave it out"},
    "Adam": {"foreach": "# all updates are one launch: leave it out",
             "fused": "# all updates are one launch: leave it out",
             "capturable": "# a step compiles as it is: leave it out"},
    "AdamW": {"foreach": "# all updates are one launch: leave it out",
              "fused": "# all updates are one launch: leave it out",
              "capturable": "# a step compiles as it is: leave it out"},
    "checkpoint": {"use_reentrant": "# leave it out: wf.checkpoint(f)(x)"},
    "autocast": {"device_type": "dtype='bfloat16'", "cache_enabled": "# leave it out"},
    "LossScale": {
        "enabled": "# an optimiser has it where it is needed: wf.optim.SGD(parameters, lr=0.1, "
        "precision='float16')",
        "init_scale": "scale=wf.tensor({value})",
        "growth_factor": "growth={value}",
        "backoff_factor": "backoff={value}",
        "growth_interval": "interval={value}",
    },
    "relu": {"inplace": "# tensors are values: leave it out"},
    "dropout": {"inplace": "# tensors are values: leave it out"},
    "to": {"non_blocking": "# leave it out",
           "memory_format": "# leave it out"},
    "zero_grad": {"set_to_none": "# gradients are None afterwards in any case: leave it out"},
}  # fmt: skip
"""What more is said of an option of one function."""
