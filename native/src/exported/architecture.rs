//! Which network of the field a graph is: a preset, with its options read back from its blocks. Pure.

use barnraise_protocol::run::Preset;
use barnraise_protocol::run::model::Size;
use barnraise_protocol::run::model::graph::{Block, Graph};
use barnraise_protocol::run::model::operation::{
    Attention, BatchNorm, Experts, GroupNorm, Operation, Repeat,
};
use barnraise_protocol::run::model::presets::{Albert, Gpt, GptExperts, GptFamily, Norm, ResNet};

/// A network that other libraries have, with all options written out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Architecture {
    /// transformers' `GPT2LMHeadModel` or `LlamaForCausalLM`, with biases `Qwen2ForCausalLM`, and with experts in one dimension
    /// `MixtralForCausalLM`.
    Gpt(Gpt),
    /// transformers' `AlbertForMaskedLM`.
    Albert(Albert),
    /// torchvision's `ResNet` and, with batch normalization and for large pictures, transformers'
    /// `ResNetForImageClassification`.
    ResNet(ResNetDepth, ResNet),
}

/// Layers of a residual network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResNetDepth {
    /// Two convolutions in a block.
    Of18,
    /// Bottlenecks of three.
    Of50,
}

impl Architecture {
    /// `None` where it is a graph of somebody's own, or another preset.
    pub(crate) fn of(graph: &Graph) -> Option<Self> {
        gpt(graph).map(Self::Gpt).or_else(|| albert(graph).map(Self::Albert)).or_else(|| resnet(graph))
    }

    /// Whether transformers has a class for it.
    pub(crate) fn is_of_transformers(&self) -> bool {
        match self {
            // With one active expert ours has a weight that learns, and Mixtral's is 1.
            Self::Gpt(gpt @ Gpt { family, experts: Some(experts), .. }) => {
                let is_plain = !gpt.attention_bias && gpt.rotary_scaling.is_none();
                is_plain && *family == GptFamily::Llama && experts.dimensions == 1 && experts.active > 1
            }
            Self::Gpt(_) | Self::Albert(_) => true,
            Self::ResNet(_, options) => options.norm == Norm::Batch && !options.small_pictures,
        }
    }
}

fn blocks(graph: &Graph) -> impl Iterator<Item = &Block> {
    graph.parts.iter().flat_map(|part| &part.blocks).chain(&graph.blocks)
}

fn operation<'a>(graph: &'a Graph, name: &str) -> Option<&'a Operation> {
    blocks(graph).find(|block| block.name == name).map(|block| &block.op)
}

fn units(graph: &Graph, name: &str) -> Option<u32> {
    match operation(graph, name)? {
        Operation::Dense(dense) => match dense.units {
            Size::Fixed(units) => Some(units),
            _ => None,
        },
        _ => None,
    }
}

fn width(graph: &Graph, table: &str) -> Option<u32> {
    match operation(graph, table)? {
        Operation::Embedding(table) => Some(table.width),
        _ => None,
    }
}

fn attention(graph: &Graph) -> Option<&Attention> {
    blocks(graph).find_map(|block| match &block.op {
        Operation::Attention(options) => Some(options),
        _ => None,
    })
}

fn repeat(graph: &Graph) -> Option<&Repeat> {
    blocks(graph).find_map(|block| match &block.op {
        Operation::Repeat(repeat) => Some(repeat),
        _ => None,
    })
}

fn experts(graph: &Graph) -> Option<GptExperts> {
    blocks(graph).find_map(|block| match &block.op {
        Operation::Experts(Experts { side, dimensions, active, .. }) => {
            Some(GptExperts { side: *side, dimensions: *dimensions, active: *active })
        }
        _ => None,
    })
}

/// Whether they compute the same by the same tensors; the name for people may differ.
fn is_same(graph: &Graph, preset: &Preset) -> bool {
    let other = preset.graph();
    (&graph.parts, &graph.blocks, &graph.loss) == (&other.parts, &other.blocks, &other.loss)
}

fn gpt(graph: &Graph) -> Option<Gpt> {
    let Attention { heads, key_value_heads, dropout, rotary, .. } = *attention(graph)?;
    let layers = repeat(graph)?.times;
    let families = [
        (GptFamily::Gpt2, "transformer.wte", ["mlp.c_fc", "c_fc"]),
        (GptFamily::Llama, "model.embed_tokens", ["mlp.gate_proj", "w1"]),
    ];
    let experts = experts(graph);
    families.into_iter().find_map(|(family, table, [inner, of_experts])| {
        let inner = if experts.is_some() { of_experts } else { inner };
        let (width, inner) = (width(graph, table)?, units(graph, inner)?);
        let key_value_heads = if key_value_heads == 0 { heads } else { key_value_heads };
        let epsilon = match operation(graph, "ln_1").or_else(|| operation(graph, "input_layernorm"))? {
            Operation::LayerNorm(norm) => norm.epsilon,
            Operation::RmsNorm(norm) => norm.epsilon,
            _ => return None,
        };
        let new = Gpt::new(family, width, layers, heads);
        let theta = rotary.map_or(new.theta, |rotary| rotary.theta);
        let rotary_scaling = rotary.and_then(|rotary| rotary.scaling);
        let query = operation(graph, "self_attn.q_proj");
        let attention_bias = matches!(query, Some(Operation::Dense(dense)) if dense.bias);
        let untied = matches!(operation(graph, "lm_head"), Some(Operation::Dense(_)));
        let gpt = Gpt {
            key_value_heads,
            inner,
            dropout,
            epsilon,
            theta,
            rotary_scaling,
            attention_bias,
            untied,
            experts,
            ..new
        };
        // The heads of keys may have been left out.
        let written = [gpt, Gpt { key_value_heads: 0, ..gpt }];
        written.into_iter().any(|gpt| is_same(graph, &Preset::Gpt(gpt))).then_some(gpt)
    })
}

fn albert(graph: &Graph) -> Option<Albert> {
    let albert = Albert {
        embedding: width(graph, "albert.embeddings.word_embeddings")?,
        hidden: units(graph, "albert.encoder.embedding_hidden_mapping_in")?,
        heads: attention(graph)?.heads,
        inner: units(graph, "ffn")?,
        layers: repeat(graph)?.times,
    };
    is_same(graph, &Preset::Albert(albert)).then_some(albert)
}

fn resnet(graph: &Graph) -> Option<Architecture> {
    let first = graph.blocks.iter().find(|block| block.name == "conv1")?;
    let Operation::Convolution(convolution) = &first.op else { return None };
    let norm = match graph.blocks.iter().find(|block| block.name == "bn1")?.op {
        Operation::BatchNorm(BatchNorm { running: true, .. }) => Norm::Batch,
        Operation::GroupNorm(GroupNorm { groups, .. }) => Norm::Group(groups),
        _ => return None,
    };
    let small_pictures = convolution.kernel == [3, 3];
    let options = ResNet { norm, small_pictures, width: convolution.maps };
    [(ResNetDepth::Of18, Preset::ResNet18(options)), (ResNetDepth::Of50, Preset::ResNet50(options))]
        .into_iter()
        .find_map(|(depth, preset)| is_same(graph, &preset).then_some(Architecture::ResNet(depth, options)))
}

#[cfg(test)]
mod tests {
    use barnraise_protocol::run::model::operation::RotaryScaling;

    use super::*;

    #[test]
    fn a_preset_is_known_by_its_blocks_with_its_options() {
        let of = |family| Gpt { inner: 24, dropout: 0.1, epsilon: 1e-3, ..Gpt::new(family, 16, 2, 4) };
        let gpt = of(GptFamily::Gpt2);
        let llama = Gpt { key_value_heads: 2, theta: 500.0, untied: true, ..of(GptFamily::Llama) };
        let albert = Albert { embedding: 8, hidden: 16, heads: 2, inner: 32, layers: 3 };
        let plain = ResNet { width: 8, ..ResNet::default() };
        let small = ResNet { norm: Norm::Group(4), small_pictures: true, width: 8 };
        let written = Gpt { key_value_heads: 4, ..gpt };
        let experts = |side, dimensions, active| Some(GptExperts { side, dimensions, active });
        let mixtral = Gpt { experts: experts(8, 1, 2), ..llama };
        let scaling =
            RotaryScaling { factor: 8.0, low_frequency: 1.0, high_frequency: 4.0, original_tokens: 64 };
        let longer = Gpt { rotary_scaling: Some(scaling), ..llama };
        let qwen = Gpt { attention_bias: true, untied: false, ..llama };
        let switch = Gpt { experts: experts(8, 1, 1), ..llama };
        let grid = Gpt { experts: experts(3, 2, 2), ..written };
        for (preset, want, is_of_transformers) in [
            (Preset::Gpt(gpt), Architecture::Gpt(written), true),
            (Preset::Gpt(llama), Architecture::Gpt(llama), true),
            (Preset::Gpt(written), Architecture::Gpt(written), true),
            (Preset::Gpt(longer), Architecture::Gpt(longer), true),
            (Preset::Gpt(qwen), Architecture::Gpt(qwen), true),
            (Preset::Gpt(mixtral), Architecture::Gpt(mixtral), true),
            (Preset::Gpt(switch), Architecture::Gpt(switch), false),
            (Preset::Gpt(grid), Architecture::Gpt(grid), false),
            (Preset::Albert(albert), Architecture::Albert(albert), true),
            (Preset::ResNet18(plain), Architecture::ResNet(ResNetDepth::Of18, plain), true),
            (Preset::ResNet50(plain), Architecture::ResNet(ResNetDepth::Of50, plain), true),
            (Preset::ResNet18(small), Architecture::ResNet(ResNetDepth::Of18, small), false),
        ] {
            let got = Architecture::of(&preset.graph());
            assert_eq!(got, Some(want));
            assert_eq!(got.map(|got| got.is_of_transformers()), Some(is_of_transformers));
        }
    }

    #[test]
    fn a_graph_that_differs_in_one_block_is_none() {
        for preset in [Preset::LeNet, Preset::Mlp { hidden: vec![3] }] {
            assert_eq!(Architecture::of(&preset.graph()), None);
        }
        let mut graph = Preset::ResNet18(ResNet::default()).graph();
        graph.blocks.insert(3, Block::new("more", Operation::Relu));
        assert_eq!(Architecture::of(&graph), None);
        let gpt = Gpt { dropout: 0.1, ..Gpt::new(GptFamily::Gpt2, 16, 2, 4) };
        let mut graph = Preset::Gpt(gpt).graph();
        graph.parts[0].blocks.retain(|block| block.name != "mlp.dropout");
        assert_eq!(Architecture::of(&graph), None);
    }
}
