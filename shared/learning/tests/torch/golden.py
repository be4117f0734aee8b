"""Outputs and gradients of PyTorch, for src/engine/graph/tests/torch.rs.

    pip install torch torchvision pillow transformers safetensors
    python golden.py    # writes golden.safetensors beside it

A case is a graph as an operator writes it, the same network in PyTorch, and a batch. The file has, for each case, inputs,
targets, the output, the losses of the samples, and the gradient of their sum by the first values of every tensor. It has no parameters: both
sides draw them from the tensors' names.
"""

import json
from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

MASK = (1 << 64) - 1
# Most values of a tensor's gradient in the file.
GRADIENT_VALUES = 160
CASES = {}
TENSORS = {}


def draw(name, shape):
    """Uniform in 0.4 * [-1, 1): SplitMix64, its state FNV-1a of the name."""
    state = 0xCBF29CE484222325
    for byte in name.encode():
        state = (state ^ byte) * 0x100000001B3 & MASK
    values = []
    for _ in range(torch.Size(shape).numel()):
        state = state + 0x9E3779B97F4A7C15 & MASK
        z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        values.append(0.4 * (((z ^ z >> 31) >> 40) / 8388608 - 1))
    return torch.tensor(values, dtype=torch.float32).reshape(shape)


def is_transposed(module, name):
    """Weights of a linear layer are [in, out] here and [out, in] there."""
    is_linear = isinstance(module, nn.Linear) or type(module).__name__ == "MixtralTopKRouter"
    return is_linear and name == "weight"


def parameters(module, rename):
    """Draws all parameters, and returns them by the names of the graph."""
    found = {}
    for path, child in module.named_modules():
        for name, parameter in child.named_parameters(recurse=False):
            full = f"{path}.{name}" if path else name
            own = rename.get(full, full)
            if own is None:
                parameter.data.zero_()
                continue
            if own in found:
                # The table of an embedding is that of the head, too.
                assert found[own][0] is parameter, f"{full} is not tied to {own}"
                continue
            transposed = is_transposed(child, name)
            shape = parameter.shape[::-1] if transposed else parameter.shape
            value = draw(own, shape)
            parameter.data.copy_(value.T if transposed else value)
            found[own] = (parameter, transposed)
    return found


def case(name, data, graph, module, inputs, targets=None, rename=(), call=None, loss="mse", masked=None, extra=()):
    """`graph` is TOML, or a preset as TOML; `loss` is what the graph's loss is in PyTorch; `extra` are losses beside it."""
    module.train()
    found = parameters(module, dict(rename))
    output = (call or module)(*inputs)
    if loss == "mse":
        targets = draw(f"{name} targets", output.shape) if targets is None else targets
        losses = ((output - targets) ** 2).flatten(1).mean(1)
    else:
        rows = output[:, :-1] if loss == "causal" else output
        rows = rows.flatten(0, -2)
        losses = F.cross_entropy(rows, targets.flatten(), reduction="none")
        losses = losses.reshape(len(inputs[0]), -1).mean(1)
    (losses.sum() + sum(extra)).backward()
    TENSORS[f"{name}/output"] = output.detach().contiguous()
    TENSORS[f"{name}/losses"] = losses.detach()
    targets_name = "values" if loss == "mse" else "classes"
    TENSORS[f"{name}/{targets_name}"] = targets.to(torch.float32 if loss == "mse" else torch.int32).contiguous()
    for index, value in enumerate(inputs):
        is_ids = value.dtype == torch.int64
        TENSORS[f"{name}/input{index}"] = value.to(torch.int32) if is_ids else value.contiguous()
    if masked is not None:
        TENSORS[f"{name}/masked"] = masked.to(torch.int32)
    for own, (parameter, transposed) in found.items():
        gradient = parameter.grad.T if transposed else parameter.grad
        TENSORS[f"{name}/gradient {own}"] = gradient.flatten()[:GRADIENT_VALUES].clone()
    CASES[name] = {"data": data, "graph": graph}


def rows(n_values, targets):
    return {"rows": [n_values, targets]}


def images(channels, height, width, classes=5):
    return {"images": [channels, height, width, classes]}


class Blocks(nn.Module):
    """Named layers, and a function of them."""

    def __init__(self, forward, **layers):
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.function = forward

    def forward(self, *inputs):
        return self.function(self, *inputs)


def on_maps(name, blocks, layer, forward, side=6, channels=4):
    """A block between a convolution, so that it has a gradient by its input, and the mean over pixels."""
    graph = f"""
        name = "{name}"
        loss = "classification"
        blocks = [
            {{ name = "first", op = {{ convolution = {{ maps = {channels}, kernel = [1, 1] }} }} }},
            {blocks}
            {{ name = "flat", op = "flatten" }},
            {{ name = "fc", op = {{ dense = {{ units = "classes" }} }} }},
        ]
    """
    x = draw(f"{name} input", (3, 2, side, side)) * 2.5
    first = nn.Conv2d(2, channels, 1)
    width = forward(layer, first(x)).flatten(1).shape[1]
    module = Blocks(
        lambda m, x: m.fc(forward(m.layer, m.first(x)).flatten(1)), first=first, layer=layer, fc=nn.Linear(width, 5)
    )
    rename = {f"layer.{key}": f"x.{key}" for key in dict(layer.named_parameters())}
    targets = torch.tensor([0, 3, 2])
    case(name, images(2, side, side), graph, module, [x], targets, rename, loss="classes")


def on_rows(name, blocks, layer, forward, width=8):
    """A block between two linear layers."""
    graph = f"""
        name = "{name}"
        loss = "regression"
        blocks = [
            {{ name = "first", op = {{ dense = {{ units = {width} }} }} }},
            {blocks}
            {{ name = "fc", op = {{ dense = {{ units = "targets" }} }} }},
        ]
    """
    x = draw(f"{name} input", (4, 6)) * 2.5
    first = nn.Linear(6, width)
    out = forward(layer, first(x)).shape[1]
    module = Blocks(lambda m, x: m.fc(forward(m.layer, m.first(x))), first=first, layer=layer, fc=nn.Linear(out, 3))
    rename = {f"layer.{key}": f"x.{key}" for key in dict(layer.named_parameters())}
    case(name, rows(6, 3), graph, module, [x], rename=rename)


def op(text, name="x", rest=""):
    return f'{{ name = "{name}", op = {text}{rest} }},'


def apply(layer, x):
    return layer(x)


def maps():
    convolutions = {
        "convolution": ("kernel = [3, 3], padding = [1, 1]", dict(padding=1)),
        "convolution with stride": ("kernel = [3, 3], stride = [2, 1], padding = [1, 0]", dict(stride=(2, 1), padding=(1, 0))),
        "convolution in groups": ("kernel = [3, 3], groups = 2", dict(groups=2)),
        "convolution of each channel": ("kernel = [3, 3], groups = 4, padding = [1, 1]", dict(groups=4, padding=1)),
        "dilated convolution": ("kernel = [3, 3], dilation = [2, 2], padding = [2, 2]", dict(dilation=2, padding=2)),
        "convolution without bias": ("kernel = [3, 3], bias = false", dict(bias=False)),
    }
    for name, (options, arguments) in convolutions.items():
        block = op(f"{{ convolution = {{ maps = 4, {options} }} }}")
        on_maps(name, block, nn.Conv2d(4, 4, 3, **arguments), apply)
    pools = {
        "maximum pooling": ("max-pool", "", nn.MaxPool2d(2)),
        "padded maximum pooling": ("max-pool", ", padding = [1, 1]", nn.MaxPool2d(3, 2, 1)),
        "average pooling": ("average-pool", "", nn.AvgPool2d(2)),
        "padded average pooling": ("average-pool", ", padding = [1, 1]", nn.AvgPool2d(3, 2, 1)),
    }
    for name, (kind, padding, layer) in pools.items():
        size = 3 if padding else 2
        block = op(f"{{ {kind} = {{ kernel = [{size}, {size}], stride = [2, 2]{padding} }} }}")
        on_maps(name, block, layer, apply)
    on_maps("global average", op('{ global-pool = "average" }'), nn.AdaptiveAvgPool2d(1), apply)
    on_maps("global maximum", op('{ global-pool = "max" }'), nn.AdaptiveMaxPool2d(1), apply)
    on_maps("batch norm", op("{ batch-norm = {} }"), nn.BatchNorm2d(4), apply)
    on_maps("group norm", op("{ group-norm = { groups = 2 } }"), nn.GroupNorm(2, 4), apply)
    tokens = op('"to-tokens"') + op('"mean-tokens"', "mean")
    on_maps("tokens", tokens, nn.Identity(), lambda _, x: x.flatten(2).mean(2))


def vectors():
    activations = {
        "relu": nn.ReLU(),
        "gelu": nn.GELU(),
        "gelu-tanh": nn.GELU("tanh"),
        "silu": nn.SiLU(),
        "tanh": nn.Tanh(),
        "sigmoid": nn.Sigmoid(),
        "softmax": nn.Softmax(-1),
    }
    for name, layer in activations.items():
        on_rows(name, op(f'"{name}"'), layer, apply)
    on_rows("dense without bias", op("{ dense = { units = 7, bias = false } }"), nn.Linear(8, 7, bias=False), apply)
    on_rows("batch norm of vectors", op("{ batch-norm = {} }"), nn.BatchNorm1d(8), apply)
    on_rows("layer norm", op("{ layer-norm = {} }"), nn.LayerNorm(8), apply)
    on_rows("layer norm without bias", op("{ layer-norm = { bias = false } }"), nn.LayerNorm(8, bias=False), apply)
    on_rows("rms norm", op("{ rms-norm = {} }"), nn.RMSNorm(8, eps=1e-5), apply)
    on_rows("unit length", op('"unit-length"'), nn.Identity(), lambda _, x: F.normalize(x, dim=-1))
    cosine = lambda layer, x: F.linear(F.normalize(x, dim=-1), F.normalize(layer.weight, dim=-1))
    holder = Blocks(cosine)
    holder.weight = nn.Parameter(torch.zeros(5, 8))
    on_rows("cosine", op("{ cosine = { units = 5 } }"), holder, cosine)
    shift = Blocks(lambda m, x: x + m.bias)
    shift.bias = nn.Parameter(torch.zeros(8))
    on_rows("bias", op('"bias"'), shift, apply)
    branch = op("{ dense = { units = 8 } }")
    for name, join in {
        "add": lambda layer, x: layer(x) + x,
        "multiply": lambda layer, x: layer(x) * x,
        "concat": lambda layer, x: torch.cat([layer(x), x], -1),
        "dot-product": lambda layer, x: (layer(x) * x).sum(-1, keepdim=True),
    }.items():
        blocks = branch + op(f'"{name}"', "join", ', from = ["x", "first"]')
        on_rows(name, blocks, nn.Linear(8, 8), join)
    shared = branch + op("{ dense = { units = 8 } }", "again", ', shares = "x"')
    on_rows("shared weights", shared, nn.Linear(8, 8), lambda layer, x: layer(layer(x)))


def mixtures():
    """Experts on a grid, as Learning@home has them; with one active expert as Switch Transformers."""
    variants = {
        "experts": (5, 1, 2, 0.0),
        "experts on a grid": (3, 2, 4, 0.0),
        "one active expert": (2, 2, 1, 0.0),
        "balanced experts": (2, 2, 3, 0.5),
    }
    for name, (side, dimensions, active, balance) in variants.items():
        options = f'part = "expert", side = {side}, dimensions = {dimensions}, active = {active}, balance = {balance}'
        graph = f"""
            name = "{name}"
            loss = "regression"
            parts = [{{ name = "expert", blocks = [
                {{ name = "up", op = {{ dense = {{ units = 7 }} }} }},
                {{ name = "act", op = "tanh" }},
                {{ name = "down", op = {{ dense = {{ units = 5 }} }} }},
            ] }}]
            blocks = [
                {{ name = "first", op = {{ dense = {{ units = 24 }} }} }},
                {{ name = "tokens", op = {{ reshape = {{ shape = [4, 6] }} }} }},
                {{ name = "x", op = {{ experts = {{ {options} }} }} }},
                {{ name = "flat", op = "flatten" }},
                {{ name = "fc", op = {{ dense = {{ units = "targets" }} }} }},
            ]
        """
        places = list(product(range(side), repeat=dimensions))
        experts = [nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5)) for _ in places]
        gates = [nn.Linear(6, side, bias=False) for _ in range(dimensions)]
        extra = []

        def forward(m, x, places=places, active=active, balance=balance, side=side, extra=extra):
            x = m.first(x).unflatten(1, (4, 6))
            of_dimensions = [gate(x) for gate in m.gates]
            scores = torch.stack(
                [sum(scores[..., at] for scores, at in zip(of_dimensions, place)) for place in places], -1
            )
            best, chosen = scores.topk(active, -1)
            weights = scores.softmax(-1).gather(-1, chosen) if active == 1 else best.softmax(-1)
            given = torch.stack([expert(x) for expert in m.experts], -2)
            mixed = (given.gather(-2, chosen[..., None].expand(*chosen.shape, 5)) * weights[..., None]).sum(-2)
            extra.clear()
            for dimension, scores in enumerate(of_dimensions):
                places_chosen = torch.tensor([place[dimension] for place in places])[chosen]
                shares = F.one_hot(places_chosen, side).flatten(0, -2).float().mean(0)
                extra.append(balance * side * (scores.softmax(-1).mean(1) * shares).sum())
            return m.fc(mixed.flatten(1))

        module = Blocks(
            forward,
            first=nn.Linear(6, 24),
            gates=nn.ModuleList(gates),
            experts=nn.ModuleList(experts),
            fc=nn.Linear(20, 3),
        )
        rename = {f"gates.{i}.weight": "x.gate.weight" if dimensions == 1 else f"x.gate.{i}.weight" for i in range(dimensions)}
        for index, place in enumerate(places):
            own = "x.experts." + ".".join(map(str, place))
            for layer, block in {0: "up", 2: "down"}.items():
                for tensor in ("weight", "bias"):
                    rename[f"experts.{index}.{layer}.{tensor}"] = f"{own}.{block}.{tensor}"
        case(name, rows(6, 3), graph, module, [draw(f"{name} input", (4, 6)) * 2.5], rename=rename, extra=extra)


def rotate(x, theta):
    """As transformers' `apply_rotary_pos_emb`: x is [..., length, width]."""
    length, width = x.shape[-2:]
    frequencies = theta ** (-torch.arange(0, width, 2) / width)
    angles = torch.outer(torch.arange(length), frequencies)
    angles = torch.cat([angles, angles], -1)
    a, b = x.chunk(2, -1)
    return x * angles.cos() + torch.cat([-b, a], -1) * angles.sin()


def attend(q, k, v, heads, groups, causal, theta):
    split = lambda x, n: x.unflatten(-1, (n, -1)).transpose(1, 2)
    q, k, v = split(q, heads), split(k, groups), split(v, groups)
    if theta:
        q, k = rotate(q, theta), rotate(k, theta)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=groups < heads)
    return mixed.transpose(1, 2).flatten(2)


def attention():
    variants = {
        "attention": (2, 2, False, None),
        "causal attention": (2, 2, True, None),
        "grouped attention": (4, 2, False, None),
        "grouped causal rotary attention": (4, 2, True, 100.0),
        "multi-query attention": (4, 1, True, None),
    }
    for name, (heads, groups, causal, theta) in variants.items():
        width = 4
        sizes = [heads * width, groups * width, groups * width]
        rotary = f", rotary = {{ theta = {theta} }}" if theta else ""
        options = f"heads = {heads}, key_value_heads = {groups}, causal = {str(causal).lower()}{rotary}"
        graph = f"""
            name = "attention"
            loss = "regression"
            blocks = [
                {{ name = "tokens", op = {{ reshape = {{ shape = [5, 6] }} }} }},
                {{ name = "q", op = {{ dense = {{ units = {sizes[0]} }} }}, from = ["tokens"] }},
                {{ name = "k", op = {{ dense = {{ units = {sizes[1]} }} }}, from = ["tokens"] }},
                {{ name = "v", op = {{ dense = {{ units = {sizes[2]} }} }}, from = ["tokens"] }},
                {{ name = "x", op = {{ attention = {{ {options} }} }}, from = ["q", "k", "v"] }},
                {{ name = "flat", op = "flatten" }},
                {{ name = "fc", op = {{ dense = {{ units = "targets" }} }} }},
            ]
        """
        q, k, v = (nn.Linear(6, size) for size in sizes)

        def forward(m, x, heads=heads, groups=groups, causal=causal, theta=theta):
            x = x.unflatten(-1, (5, 6))
            return m.fc(attend(m.q(x), m.k(x), m.v(x), heads, groups, causal, theta).flatten(1))

        module = Blocks(forward, q=q, k=k, v=v, fc=nn.Linear(5 * heads * width, 2))
        case(name, rows(30, 2), graph, module, [draw(f"{name} input", (3, 30)) * 2.5])
    multihead()


def multihead():
    """The weights of `nn.MultiheadAttention` are queries, keys and values in one, [3 * width, width]."""
    graph = """
        name = "attention"
        loss = "regression"
        blocks = [
            { name = "tokens", op = { reshape = { shape = [5, 8] } } },
            { name = "qkv", op = { dense = { units = 24 } } },
            { name = "x", op = { attention = { heads = 2 } } },
            { name = "out_proj", op = { dense = { units = 8 } } },
            { name = "fc", op = "mean-tokens" },
        ]
    """
    qkv, out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(m, x):
        x = x.unflatten(-1, (5, 8)).transpose(0, 1)
        mixed, _ = F.multi_head_attention_forward(
            x, x, x, 8, 2, m.qkv.weight, m.qkv.bias, None, None, False, 0.0, m.out_proj.weight, m.out_proj.bias
        )
        return mixed.mean(0)

    case("packed attention", rows(40, 8), graph, Blocks(forward, qkv=qkv, out_proj=out), [draw("packed input", (3, 40)) * 2.5])


def text_data(length, vocabulary, n_masked=2):
    return {"tokens": [length, vocabulary, n_masked]}


def presets():
    ids = torch.tensor([[(7 * at + 3 * at * at + 5 * row) % 13 for at in range(6)] for row in range(3)])
    gpt2(ids)
    llama(ids)
    mixtral(ids)
    albert(ids)
    resnets()
    vit()
    ratings()


def gpt2(ids):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=13, n_positions=6, n_embd=8, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    model = GPT2LMHeadModel(config)
    preset = "preset = { gpt = { width = 8, layers = 2, heads = 2 } }"
    logits = lambda ids: model(ids).logits
    rename = {"lm_head.weight": "transformer.wte.weight"}
    case("gpt-2", text_data(6, 13), preset, model, [ids], ids[:, 1:], rename, logits, "causal")


def llama(ids):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=13,
        hidden_size=16,
        intermediate_size=20,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        attention_dropout=0.0,
    )
    model = LlamaForCausalLM(config)
    preset = 'preset = { gpt = { family = "llama", width = 16, layers = 2, heads = 4, key_value_heads = 2, inner = 20 } }'
    rename = {"lm_head.weight": "model.embed_tokens.weight"}
    logits = lambda ids: model(ids).logits
    case("llama", text_data(6, 13), preset, model, [ids], ids[:, 1:], rename, logits, "causal")


class Mixtral(nn.Module):
    """The experts of transformers' Mixtral, their tensors as in its files."""

    def __init__(self, experts, inner):
        super().__init__()
        linear = lambda weight: nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.experts = nn.ModuleList()
        for index in range(experts.num_experts):
            up, down = experts.gate_up_proj[index], experts.down_proj[index]
            layers = nn.ModuleDict({"w1": linear(up[:inner]), "w3": linear(up[inner:]), "w2": linear(down)})
            self.experts.append(layers)

    def forward(self, x, chosen, weights):
        given = torch.stack([e["w2"](F.silu(e["w1"](x)) * e["w3"](x)) for e in self.experts], -2)
        return (given.gather(-2, chosen[..., None].expand(*chosen.shape, x.shape[-1])) * weights[..., None]).sum(-2)


def mixtral(ids):
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=13,
        hidden_size=16,
        intermediate_size=20,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=3,
        num_experts_per_tok=2,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        attention_dropout=0.0,
    )
    model = MixtralForCausalLM(config)
    rename = {"lm_head.weight": "model.embed_tokens.weight"}
    extra = []

    def balance(router, inputs, outputs):
        """The preset's, of 3 experts and 6 tokens."""
        logits, _, chosen = outputs
        shares = F.one_hot(chosen, 3).flatten(0, -2).float().mean(0)
        extra.append(0.01 * 3 * (logits.softmax(-1).sum(0) / 6 * shares).sum())

    for index, layer in enumerate(model.model.layers):
        layer.mlp.gate.register_forward_hook(balance)
        # The fused tensors of the class are those of its files side by side.
        layer.mlp.experts = Mixtral(layer.mlp.experts, 20)
        own = f"model.layers.{index}.block_sparse_moe"
        rename[f"model.layers.{index}.mlp.gate.weight"] = f"{own}.gate.weight"
        for expert in range(3):
            for name in ("w1", "w2", "w3"):
                path = f"experts.experts.{expert}.{name}.weight"
                rename[f"model.layers.{index}.mlp.{path}"] = f"{own}.experts.{expert}.{name}.weight"
    preset = (
        'preset = { gpt = { family = "llama", width = 16, layers = 2, heads = 4, key_value_heads = 2, inner = 20, '
        "experts = { side = 3, active = 2 } } }"
    )
    logits = lambda ids: model(ids).logits
    case("mixtral", text_data(6, 13), preset, model, [ids], ids[:, 1:], rename, logits, "causal", extra=extra)


def albert(ids):
    from transformers import AlbertConfig, AlbertForMaskedLM

    config = AlbertConfig(
        vocab_size=13,
        embedding_size=6,
        hidden_size=8,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=12,
        hidden_act="gelu",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=6,
        layer_norm_eps=1e-6,
    )
    model = AlbertForMaskedLM(config)
    # Token 0 is one like others here: it has a gradient.
    model.albert.embeddings.word_embeddings.padding_idx = None
    # The flat vector has no token types.
    rename = {"albert.embeddings.token_type_embeddings.weight": None, "albert.pooler.weight": None, "albert.pooler.bias": None}
    rename["predictions.decoder.weight"] = "albert.embeddings.word_embeddings.weight"
    rename["predictions.decoder.bias"] = "predictions.bias"
    # Both are positions in [samples * length], two of each sample.
    masked = torch.tensor([1, 4, 6, 9, 14, 17])
    pick = lambda ids: model(ids).logits.flatten(0, 1)[masked].unflatten(0, (3, 2))
    preset = "preset = { albert = { embedding = 6, hidden = 8, heads = 2, inner = 12, layers = 3 } }"
    targets = torch.tensor([0, 5, 12, 3, 4, 9])
    case("albert", text_data(6, 13), preset, model, [ids], targets, rename, pick, "classes", masked)


def resnets():
    from torchvision.models.resnet import BasicBlock, Bottleneck

    def trunk(block, depths, width, norm):
        layers = {"conv1": nn.Conv2d(3, width, 3, padding=1, bias=False), "bn1": norm(width)}
        n_in = width
        for stage, depth in enumerate(depths):
            planes, stride = width << stage, 1 if stage == 0 else 2
            blocks = []
            for index in range(depth):
                stride = stride if index == 0 else 1
                n_out = planes * block.expansion
                down = None
                if index == 0 and (stride != 1 or n_in != n_out):
                    down = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), norm(n_out))
                # A bottleneck is as wide as its planes.
                blocks.append(block(n_in, planes, stride, down, norm_layer=norm))
                n_in = n_out
            layers[f"layer{stage + 1}"] = nn.Sequential(*blocks)
        layers["fc"] = nn.Linear(n_in, 5)

        def forward(m, x):
            x = F.relu(m.bn1(m.conv1(x)))
            for stage in range(4):
                x = getattr(m, f"layer{stage + 1}")(x)
            return m.fc(x.mean((2, 3)))

        return Blocks(forward, **layers)

    x = draw("resnet input", (4, 3, 16, 16)) * 2.5
    targets = torch.tensor([0, 3, 2, 4])
    group = lambda groups: lambda channels: nn.GroupNorm(groups, channels)
    for name, norm, options in [
        ("resnet-18", nn.BatchNorm2d, ""),
        ("resnet-18 with group norm", group(2), ", norm = { group = 2 }"),
    ]:
        preset = f"preset = {{ resnet-18 = {{ small_pictures = true, width = 2{options} }} }}"
        module = trunk(BasicBlock, [2, 2, 2, 2], 2, norm)
        case(name, images(3, 16, 16), preset, module, [x], targets, loss="classes")
    # With one map PyTorch itself differs by 3e-4 between single and double precision.
    preset = "preset = { resnet-50 = { small_pictures = true, width = 4, norm = { group = 1 } } }"
    module = trunk(Bottleneck, [3, 4, 6, 3], 4, group(1))
    case("resnet-50", images(3, 16, 16), preset, module, [x], targets, loss="classes")


def vit():
    width, heads = 8, 2

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
            self.attn = nn.ModuleDict({"qkv": nn.Linear(width, 3 * width), "proj": nn.Linear(width, width)})
            self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, 4 * width), "fc2": nn.Linear(4 * width, width)})

        def forward(self, x):
            q, k, v = self.attn["qkv"](self.norm1(x)).chunk(3, -1)
            x = x + self.attn["proj"](attend(q, k, v, heads, heads, False, None))
            return x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))

    def forward(m, x):
        x = m.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([m.cls_token.expand(len(x), 1, -1), x], 1) + m.pos_embed
        for block in m.blocks:
            x = block(x)
        return m.head(m.norm(x)[:, 0])

    blocks = nn.ModuleList([Layer(), Layer()])
    module = Blocks(
        forward, patch=nn.Conv2d(3, width, 4, 4), blocks=blocks, norm=nn.LayerNorm(width, eps=1e-6), head=nn.Linear(width, 5)
    )
    module.cls_token = nn.Parameter(torch.zeros(width))
    module.pos_embed = nn.Parameter(torch.zeros(10, width))
    rename = {"cls_token": "cls_token.weight", "pos_embed": "pos_embed.weight"}
    rename |= {f"patch.{name}": f"patch_embed.proj.{name}" for name in ("weight", "bias")}
    x = draw("vit input", (3, 3, 12, 12)) * 2.5
    preset = "preset = { vit = { patch = 4, width = 8, layers = 2, heads = 2 } }"
    case("vit", images(3, 12, 12), preset, module, [x], torch.tensor([1, 0, 4]), rename, loss="classes")


def ratings():
    tables = {"user_factors": (4, 3), "item_factors": (5, 3), "user_bias": (4, 1), "item_bias": (5, 1)}

    def forward(m, user, item):
        product = (m.user_factors(user) * m.item_factors(item)).sum(-1, keepdim=True)
        return product + m.user_bias(user) + m.item_bias(item) + m.mean

    module = Blocks(forward, **{name: nn.Embedding(*shape) for name, shape in tables.items()})
    module.mean = nn.Parameter(torch.zeros(1))
    inputs = [torch.tensor([0, 1, 2, 3, 0, 1]), torch.tensor([4, 3, 2, 1, 0, 0])]
    targets = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 3.0]).unsqueeze(1)
    preset = "preset = { matrix-factorization = { factors = 3 } }"
    case("matrix-factorization", {"ratings": [4, 5]}, preset, module, inputs, targets, {"mean": "mean.bias"})


torch.manual_seed(0)
maps()
vectors()
mixtures()
attention()
presets()
path = Path(__file__).with_name("golden.safetensors")
notes = {name: json.dumps(case, sort_keys=True) for name, case in CASES.items()}
save_file({name: tensor.clone() for name, tensor in TENSORS.items()}, path, notes)
print(f"{len(CASES)} cases, {path.stat().st_size} bytes")
