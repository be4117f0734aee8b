"""The same step in PyTorch: a model of `transformers`, or a residual network, with our initial parameters and our batch, so that
both must report the same loss. It computes the gradient and adds it up, as ours does.

    python torch_steps.py FOLDER STEPS THREADS

Prints a JSON object: milliseconds of a step, the loss, and what it computed on. FOLDER has `case.json` and the files that
`benches/src/torch.rs` writes beside it.
"""

import json
import sys
import time
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F
import transformers
from torch import nn

WARM_UP_STEPS = 5


class ResidualBlock(nn.Module):
    def __init__(self, n_in, n_out, stride, norm):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False), norm(n_out)
        self.conv2, self.bn2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False), norm(n_out)
        self.downsample = None
        if stride != 1 or n_in != n_out:
            self.downsample = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), norm(n_out))

    def forward(self, x):
        residual = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)) + residual)


class ResNet18(nn.Module):
    """For small pictures, with group norm (He et al. 2016; Wu and He 2018)."""

    def __init__(self, n_classes, width, norm, **_):
        super().__init__()
        groups = norm["group"]
        norm = lambda maps: nn.GroupNorm(groups, maps)
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, padding=1, bias=False), norm(width)
        for stage in range(4):
            n_in, n_out = width << max(stage - 1, 0), width << stage
            first = ResidualBlock(n_in, n_out, 1 if stage == 0 else 2, norm)
            setattr(self, f"layer{stage + 1}", nn.Sequential(first, ResidualBlock(n_out, n_out, 1, norm)))
        self.fc = nn.Linear(width << 3, n_classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        for stage in range(4):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(x.mean((2, 3)))


def gpt2(data, width, layers, heads, **_):
    config = transformers.GPT2Config(
        vocab_size=data["vocabulary"],
        n_positions=data["length"],
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return transformers.GPT2LMHeadModel(config)


def albert(data, embedding, hidden, heads, inner, layers):
    config = transformers.AlbertConfig(
        vocab_size=data["vocabulary"],
        embedding_size=embedding,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        hidden_act="gelu",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=data["length"],
        layer_norm_eps=1e-6,
    )
    model = transformers.AlbertForMaskedLM(config)
    model.albert.embeddings.word_embeddings.padding_idx = None
    # Ours has no token types, and pools nothing.
    model.albert.embeddings.token_type_embeddings.weight.data.zero_()
    model.albert.pooler = None
    return model


def load(model, segments, values):
    """Copies the flat vector into the parameters of the same names."""
    tied = {"lm_head.weight", "predictions.decoder.weight"}
    n_loaded = 0
    for path, child in model.named_modules():
        for name, parameter in child.named_parameters(recurse=False):
            full = f"{path}.{name}" if path else name
            full = "predictions.bias" if full == "predictions.decoder.bias" else full
            if full in tied or "token_type" in full:
                continue
            offset, shape = segments[full]
            value = values[offset : offset + numpy.prod(shape, dtype=int)].reshape(shape)
            # Weights of a linear layer are [in, out] here and [out, in] there.
            transposed = isinstance(child, nn.Linear) and name == "weight"
            parameter.data.copy_(torch.from_numpy(numpy.ascontiguousarray(value.T if transposed else value)))
            n_loaded += 1
    assert n_loaded >= len(segments), f"{n_loaded} of {len(segments)} tensors"


def step_of(folder, case):
    """The model, and the mean loss of the batch as a function."""
    read = lambda name, dtype, *shape: torch.from_numpy(numpy.fromfile(folder / name, dtype).reshape(shape))
    n, data = case["n_samples"], case["data"]
    ((kind, options),) = case["model"].items()
    if kind == "resnet-18":
        model = ResNet18(data["classes"], **options)
        images = read("inputs", numpy.float32, n, data["side"], data["side"], 3).permute(0, 3, 1, 2).contiguous()
        classes = read("targets", numpy.int32, n).long()
        return model, lambda: F.cross_entropy(model(images), classes)
    ids = read("inputs", numpy.int32, n, data["length"]).long()
    if kind == "gpt":
        model = gpt2(data, **options)
        return model, lambda: F.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    model = albert(data, **options)
    positions = read("positions", numpy.int32, -1).long()
    targets = read("targets", numpy.int32, -1).long()

    def masked():
        states = model.albert(ids).last_hidden_state.flatten(0, 1)[positions]
        return F.cross_entropy(model.predictions(states), targets)

    return model, masked


def main():
    folder, n_steps, n_threads = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(n_threads)
    case = json.loads((folder / "case.json").read_text())
    model, loss_of = step_of(folder, case)
    load(model, case["segments"], numpy.fromfile(folder / "parameters", numpy.float32))
    model.train()

    def steps(n):
        for _ in range(n):
            loss = loss_of()
            loss.backward()
        return loss.item()

    steps(WARM_UP_STEPS)
    start = time.perf_counter()
    loss = steps(n_steps)
    ms_per_step = (time.perf_counter() - start) * 1000 / n_steps
    print(json.dumps({"ms_per_step": ms_per_step, "loss": loss, "device": f"PyTorch {torch.__version__}"}))


main()
