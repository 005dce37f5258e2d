"""What the names of Keras and TensorFlow are called here, in the form of `torch_names`.

>>> from weft.core.foreign.keras_names import KERAS
>>> KERAS["keras.layers"]["Dense"]
"wf.nn.Linear(3, 8, activation='relu')"
"""

from __future__ import annotations

KERAS: dict[str, dict[str, str]] = {
    "keras.layers": {
        "Add": "x + y",
        "AveragePooling2D": "wf.nn.AvgPool2d(2)",
        "BatchNormalization": "wf.nn.BatchNorm2d(8)",
        "Bidirectional": "wf.nn.LSTM(3, 8, bidirectional=True)",
        "Concatenate": "wf.concat([x, y], axis=-1)",
        "Conv1D": "wf.nn.Conv1d(3, 8, 3)",
        "Conv2D": "wf.nn.Conv2d(3, 8, 3)",
        "Conv2DTranspose": "wf.nn.ConvTranspose2d(3, 8, 3)",
        "Conv3D": "wf.nn.Conv3d(3, 8, 3)",
        "Dense": "wf.nn.Linear(3, 8, activation='relu')",
        "DepthwiseConv2D": "wf.nn.Conv2d(8, 8, 3, groups=8)",
        "GlobalAveragePooling2D": "wf.nn.AdaptiveAvgPool2d(1)",
        "GlobalMaxPooling2D": "wf.nn.AdaptiveMaxPool2d(1)",
        "GroupNormalization": "wf.nn.GroupNorm(4, 8)",
        "Input": "wf.spec('float32', (1, 3))  # a network takes tensors: Sequential needs no "
        "input layer",
        "InputLayer": "wf.spec('float32', (1, 3))  # Sequential needs no input layer",
        "Lambda": "# call the function in forward, or name it: wf.nn.register_activation(name, f)",
        "Layer": "wf.nn.Module()",
        "LayerNormalization": "wf.nn.LayerNorm(8)",
        "LeakyReLU": "wf.nn.LeakyReLU(0.3)",
        "MaxPooling1D": "wf.nn.MaxPool1d(2)",
        "MaxPool2D": "wf.nn.MaxPool2d(2)",
        "MaxPooling2D": "wf.nn.MaxPool2d(2)",
        "MultiHeadAttention": "wf.nn.MultiheadAttention(8, 2)",
        "Permute": "wf.permute_dims(x, (1, 0))",
        "RepeatVector": "wf.repeat(x[:, None], 3, axis=1)",
        "Reshape": "wf.nn.Unflatten(1, (1, 2))",
        "SeparableConv2D": "wf.nn.Sequential(wf.nn.Conv2d(8, 8, 3, groups=8), wf.nn.Conv2d(8, 4, "
        "1))",
        "SimpleRNN": "wf.nn.RNN(3, 8)",
        "SpatialDropout2D": "wf.nn.Dropout2d(0.5)",
        "TimeDistributed": "wf.nn.Linear(3, 8)  # layers of vectors act on the last axis of any "
        "tensor",
        "UpSampling2D": "wf.nn.Upsample(scale_factor=2)",
        "ZeroPadding2D": "wf.nn.ZeroPad2d(1)",
    },
    "keras.losses": {
        "BinaryCrossentropy": "wf.nn.BCEWithLogitsLoss()",
        "CategoricalCrossentropy": "wf.nn.CrossEntropyLoss()",
        "Huber": "wf.nn.HuberLoss()",
        "KLDivergence": "wf.nn.KLDivLoss()",
        "MeanAbsoluteError": "wf.nn.L1Loss()",
        "MeanSquaredError": "wf.nn.MSELoss()",
        "SparseCategoricalCrossentropy": "wf.nn.CrossEntropyLoss()",
    },
    "keras.activations": {
        "hard_sigmoid": "wf.nn.functional.hardsigmoid(x)",
        "linear": "x",
        "swish": "wf.nn.functional.silu(x)",
    },
    "keras.optimizers": {
        "AdamW": "wf.optim.AdamW(net.parameters(), lr=1e-3)",
        "Nadam": "wf.optim.NAdam(net.parameters())",
        "Ftrl": "wf.optim.Adagrad(net.parameters())",
        "schedules": "wf.optim.schedules",
    },
    "keras.optimizers.schedules": {
        "CosineDecay": "wf.optim.schedules.Cosine(0.1, steps=100)",
        "CosineDecayRestarts": "wf.optim.schedules.CosineRestarts(0.1, steps=100, times=2)",
        "ExponentialDecay": "wf.optim.schedules.Exponential(0.1, factor=0.99)",
        "PiecewiseConstantDecay": "wf.optim.schedules.MultiStep(0.1, milestones=(30, 60))",
        "PolynomialDecay": "wf.optim.schedules.Polynomial(0.1, steps=100)",
    },
    "keras.Model": {
        "compile": "wf.train.Trainer(net, loss_fn, optimizer, metrics=['accuracy'])",
        "count_params": "sum(p.size for p in net.parameters())",
        "evaluate": "trainer.evaluate(batches)",
        "fit": "trainer.fit(batches, epochs=1)",
        "get_weights": "net.state_dict()",
        "load_weights": "net.load_state_dict(net.state_dict())",
        "predict": "net(x)",
        "save": "wf.save(net.state_dict(), path)",
        "save_weights": "wf.save(net.state_dict(), path)",
        "set_weights": "net.load_state_dict(net.state_dict())",
        "trainable_variables": "list(net.parameters())",
        "trainable_weights": "list(net.parameters())",
        "weights": "net.state_dict()",
    },
    "keras.callbacks": {
        "ModelCheckpoint": "wf.train.BestCheckpoint('val_loss')",
        "ReduceLROnPlateau": "wf.optim.schedules.Plateau(optimizer)",
        "LearningRateScheduler": "wf.train.ScheduleCallback(schedule)",
    },
    "tensorflow": {
        "GradientTape": "wf.grad(f)  # or loss.backward()",
        "boolean_mask": "x[mask]",
        "cast": "wf.astype(x, 'float64')",
        "constant": "wf.tensor(data)",
        "convert_to_tensor": "wf.asarray(data)",
        "function": "wf.jit(f)",
        "gather_nd": "x[i, i]",
        "reduce_all": "wf.all(x > 0, axis=0)",
        "reduce_any": "wf.any(x > 0, axis=0)",
        "reduce_logsumexp": "wf.logsumexp(x, axis=0)",
        "reduce_max": "wf.max(x, axis=0)",
        "reduce_mean": "wf.mean(x, axis=0)",
        "reduce_min": "wf.min(x, axis=0)",
        "reduce_prod": "wf.prod(x, axis=0)",
        "reduce_sum": "wf.sum(x, axis=0)",
        "reverse": "wf.flip(x, axis=0)",
        "tensor_scatter_nd_add": "wf.index_add(x, 0, i, y)",
        "keras": "wf.nn, wf.train.Trainer",
    },
}  # fmt: skip
"""The names of Keras and TensorFlow by namespace."""
