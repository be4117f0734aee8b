"""Whether `onnxruntime` says of files of ONNX what `transformers` says of the same models.

    BARNRAISE_ONNX=/tmp/onnx cargo test -p barnraise-native --lib onnx
    pip install torch transformers onnxruntime
    python native/tests/torch/onnx_files.py /tmp/onnx/*

Models that `transformers` has no class for are loaded and computed only.
"""

import json
import os
import sys

import numpy
import onnxruntime
import torch
import transformers

for folder in sys.argv[1:]:
    session = onnxruntime.InferenceSession(f"{folder}/model.onnx", providers=["CPUExecutionProvider"])
    random = numpy.random.default_rng(7)
    # Fewer tokens than the run has, too.
    for n_samples, length in [(1, 12), (3, 5)]:
        sizes = {"batch": n_samples, "length": length}
        inputs = {}
        for given in session.get_inputs():
            shape = [sizes.get(size, size) for size in given.shape]
            is_ids = given.type == "tensor(int64)"
            values = random.integers(2, 40, shape) if is_ids else random.normal(size=shape).astype(numpy.float32)
            inputs[given.name] = values
        (logits,) = session.run(["logits"], inputs)
        assert logits.shape[0] == n_samples and numpy.isfinite(logits).all(), folder
        if not os.path.exists(f"{folder}/config.json"):
            print(folder, "computes", logits.shape)
            continue
        with open(f"{folder}/config.json") as file:
            (architecture,) = json.load(file)["architectures"]
        model = getattr(transformers, architecture).from_pretrained(folder).eval()
        with torch.no_grad():
            want = model(torch.tensor(values)).logits.numpy()
        difference = numpy.abs(want - logits).max()
        assert difference < 1e-4, (folder, difference)
        print(folder, "differs by", difference)
