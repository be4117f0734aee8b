//! Networks for pictures.

use crate::run::model::Size;
use crate::run::model::graph::{Block, Graph, INPUT, Loss, Part, SwavLoss};
use crate::run::model::operation::{
    Attention, BatchNorm, ClassToken, Convolution, Cosine, GlobalPool, Initial, Operation, PartCall,
    PickToken, Pool, Positions, Repeat,
};

use super::text::NORMAL_002;
use super::{Norm, ResNet, Swav, SwavTrunk, Vit, dense, group_norm, layer_norm, layers_of};

/// Feature maps of LeNet's two convolutions (LeCun et al. 1998).
const LENET_MAPS: [u32; 2] = [6, 16];
/// Units of LeNet's two hidden linear layers (LeCun et al. 1998).
const LENET_HIDDEN: [u32; 2] = [120, 84];
/// Name of the block that gives the features of a picture.
const POOLED: &str = "avgpool";

/// A convolution with square windows, before a ReLU.
fn convolution(name: &str, maps: u32, kernel: u32, stride: u32, padding: u32, bias: bool) -> Block {
    let options = Convolution {
        maps,
        kernel: [kernel; 2],
        stride: [stride; 2],
        padding: [padding; 2],
        dilation: [1, 1],
        groups: 1,
        bias,
        initial: Initial::He,
    };
    Block::new(name, Operation::Convolution(options))
}

fn max_pool(name: &str, kernel: u32, stride: u32, padding: u32) -> Block {
    let options = Pool { kernel: [kernel; 2], stride: [stride; 2], padding: [padding; 2] };
    Block::new(name, Operation::MaxPool(options))
}

fn batch_norm(name: &str, running: bool) -> Block {
    Block::new(name, Operation::BatchNorm(BatchNorm { epsilon: 1e-5, momentum: 0.1, running }))
}

fn relu(name: &str) -> Block {
    Block::new(name, Operation::Relu)
}

fn classifier(name: &str, parts: Vec<Part>, blocks: Vec<Block>) -> Graph {
    Graph { name: name.to_owned(), parts, blocks, loss: Loss::Classification }
}

/// ReLU keeps the order of values, so it follows the pooling, on a quarter of them.
pub(super) fn le_net() -> Graph {
    let blocks = vec![
        convolution("conv1", LENET_MAPS[0], 5, 1, 2, true),
        max_pool("pool1", 2, 2, 0),
        relu("relu1"),
        convolution("conv2", LENET_MAPS[1], 5, 1, 0, true),
        max_pool("pool2", 2, 2, 0),
        relu("relu2"),
        Block::new("flatten", Operation::Flatten),
        dense("fc1", LENET_HIDDEN[0], true, Initial::He),
        relu("relu3"),
        dense("fc2", LENET_HIDDEN[1], true, Initial::He),
        relu("relu4"),
        dense("fc3", Size::Classes, true, Initial::Lecun),
    ];
    classifier("LeNet", Vec::new(), blocks)
}

/// The first layer takes the picture row by row, the channels of a pixel side by side.
pub(super) fn mlp(hidden: &[u32]) -> Graph {
    let mut blocks =
        vec![Block::new("pixels", Operation::ToTokens), Block::new("flatten", Operation::Flatten)];
    for (index, &units) in hidden.iter().enumerate() {
        blocks.push(dense(&format!("fc{}", index + 1), units, true, Initial::He));
        blocks.push(relu(&format!("relu{}", index + 1)));
    }
    blocks.push(dense(&format!("fc{}", hidden.len() + 1), Size::Classes, true, Initial::Lecun));
    let widths: Vec<String> = hidden.iter().map(u32::to_string).collect();
    let name = match widths.is_empty() {
        true => "linear".to_owned(),
        false => format!("fully connected, {} units in its hidden layers", widths.join(" and ")),
    };
    classifier(&name, Vec::new(), blocks)
}

impl Norm {
    fn block(self, name: &str) -> Block {
        match self {
            Self::Batch => batch_norm(name, true),
            Self::Group(groups) => group_norm(name, groups),
        }
    }
}

/// How the blocks of a residual network are built.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Residual {
    Basic,
    Bottleneck,
}

/// Number of residual blocks in each stage, two at least.
const RESNET_18: [u32; 4] = [2, 2, 2, 2];
const RESNET_50: [u32; 4] = [3, 4, 6, 3];

pub(super) fn resnet_18(options: ResNet) -> Graph {
    resnet("ResNet-18", options, Residual::Basic, RESNET_18)
}

pub(super) fn resnet_50(options: ResNet) -> Graph {
    resnet("ResNet-50", options, Residual::Bottleneck, RESNET_50)
}

fn resnet(name: &str, options: ResNet, residual: Residual, depths: [u32; 4]) -> Graph {
    let (parts, mut blocks) = resnet_trunk(options, residual, depths);
    blocks.push(dense("fc", Size::Classes, true, Initial::Lecun));
    classifier(name, parts, blocks)
}

/// All but the last layer. A stage is a first block, which changes the size, and the others.
fn resnet_trunk(options: ResNet, residual: Residual, depths: [u32; 4]) -> (Vec<Part>, Vec<Block>) {
    let ResNet { norm, small_pictures, width } = options;
    let mut blocks = match small_pictures {
        true => vec![convolution("conv1", width, 3, 1, 1, false)],
        false => vec![convolution("conv1", width, 7, 2, 3, false)],
    };
    blocks.extend([norm.block("bn1"), relu("relu")]);
    if !small_pictures {
        blocks.push(max_pool("maxpool", 3, 2, 1));
    }
    let mut parts = Vec::new();
    for (stage, depth) in depths.into_iter().enumerate() {
        let maps = width.saturating_mul(1 << stage);
        let stride = if stage == 0 { 1 } else { 2 };
        let changes_size = stage > 0 || residual == Residual::Bottleneck;
        let (first, rest) = (format!("first-{}", stage + 1), format!("rest-{}", stage + 1));
        let block = |stride, changes_size| residual.blocks(norm, maps, stride, changes_size);
        parts.push(Part { name: first.clone(), blocks: block(stride, changes_size) });
        parts.push(Part { name: rest.clone(), blocks: block(1, false) });
        let name = format!("layer{}", stage + 1);
        blocks.push(Block::new(format!("{name}.0"), Operation::Part(PartCall { part: first })));
        let repeat = Repeat { part: rest, times: depth - 1, first: 1, share: false };
        blocks.push(Block::new(name, Operation::Repeat(repeat)));
    }
    blocks.push(Block::new(POOLED, Operation::GlobalPool(GlobalPool::Average)));
    (parts, blocks)
}

impl Residual {
    fn blocks(self, norm: Norm, maps: u32, stride: u32, changes_size: bool) -> Vec<Block> {
        let (mut blocks, last, n_out) = match self {
            Self::Basic => {
                let blocks = vec![
                    convolution("conv1", maps, 3, stride, 1, false),
                    norm.block("bn1"),
                    relu("relu1"),
                    convolution("conv2", maps, 3, 1, 1, false),
                    norm.block("bn2"),
                ];
                (blocks, "bn2", maps)
            }
            Self::Bottleneck => {
                let wide = maps.saturating_mul(4);
                let blocks = vec![
                    convolution("conv1", maps, 1, 1, 0, false),
                    norm.block("bn1"),
                    relu("relu1"),
                    convolution("conv2", maps, 3, stride, 1, false),
                    norm.block("bn2"),
                    relu("relu2"),
                    convolution("conv3", wide, 1, 1, 0, false),
                    norm.block("bn3"),
                ];
                (blocks, "bn3", wide)
            }
        };
        let mut identity = INPUT;
        if changes_size {
            blocks.push(convolution("downsample.0", n_out, 1, stride, 0, false).from(&[INPUT]));
            blocks.push(norm.block("downsample.1"));
            identity = "downsample.1";
        }
        blocks.push(Block::new("add", Operation::Add).from(&[last, identity]));
        blocks.push(relu("relu"));
        blocks
    }
}

pub(super) fn vit(options: Vit) -> Graph {
    let Vit { patch, width, layers, heads } = options;
    let (epsilon, initial) = (1e-6, Initial::Uniform(NORMAL_002));
    let attention = Attention { heads, key_value_heads: 0, causal: false, rotary: None, dropout: 0.0 };
    let layer = vec![
        layer_norm("norm1", epsilon),
        dense("attn.qkv", width.saturating_mul(3), true, initial),
        Block::new("attn", Operation::Attention(attention)),
        dense("attn.proj", width, true, initial),
        Block::new("add1", Operation::Add).from(&["attn.proj", INPUT]),
        layer_norm("norm2", epsilon),
        dense("mlp.fc1", width.saturating_mul(4), true, initial),
        Block::new("mlp.act", Operation::Gelu),
        dense("mlp.fc2", width, true, initial),
        Block::new("add2", Operation::Add).from(&["mlp.fc2", "add1"]),
    ];
    let repeat = Repeat { part: "layer".to_owned(), times: layers, first: 0, share: false };
    let blocks = vec![
        convolution("patch_embed.proj", width, patch, patch, 0, true),
        Block::new("patches", Operation::ToTokens),
        Block::new("cls_token", Operation::ClassToken(ClassToken { initial })),
        Block::new("pos_embed", Operation::Positions(Positions { initial })),
        Block::new("blocks", Operation::Repeat(repeat)),
        layer_norm("norm", epsilon),
        Block::new("class", Operation::PickToken(PickToken { index: 0 })),
        dense("head", Size::Classes, true, Initial::Lecun),
    ];
    classifier(
        &layers_of("ViT", layers, width),
        vec![Part { name: "layer".to_owned(), blocks: layer }],
        blocks,
    )
}

pub(super) fn swav(options: &Swav) -> Graph {
    let (parts, mut blocks) = match &options.trunk {
        SwavTrunk::Convolutions(maps) => (Vec::new(), convolutions(maps)),
        SwavTrunk::ResNet18(trunk) => resnet_trunk(*trunk, Residual::Basic, RESNET_18),
        SwavTrunk::ResNet50(trunk) => resnet_trunk(*trunk, Residual::Bottleneck, RESNET_50),
    };
    blocks.extend([
        dense("projection_head.0", options.hidden, true, Initial::Lecun),
        batch_norm("projection_head.1", false),
        relu("projection_head.2"),
        dense("projection_head.3", options.projection, true, Initial::Lecun),
        Block::new("prototypes", Operation::Cosine(Cosine { units: options.prototypes })),
    ]);
    let Swav { small_crops, small_side, queue_samples, queue_after, frozen_epochs, .. } = *options;
    let features = POOLED.to_owned();
    let loss = SwavLoss { features, small_crops, small_side, queue_samples, queue_after, frozen_epochs };
    let trunk = match &options.trunk {
        SwavTrunk::Convolutions(maps) => format!("{} convolutions", maps.len()),
        SwavTrunk::ResNet18(_) => "ResNet-18".to_owned(),
        SwavTrunk::ResNet50(_) => "ResNet-50".to_owned(),
    };
    let name = format!("SwAV, {trunk} and {} prototypes", options.prototypes);
    Graph { name, parts, blocks, loss: Loss::Swav(loss) }
}

fn convolutions(maps: &[u32]) -> Vec<Block> {
    let mut blocks = Vec::new();
    for (index, &maps) in maps.iter().enumerate() {
        blocks.extend([
            convolution(&format!("conv{}", index + 1), maps, 3, 1, 1, true),
            max_pool(&format!("pool{}", index + 1), 2, 2, 0),
            relu(&format!("relu{}", index + 1)),
        ]);
    }
    blocks.push(Block::new(POOLED, Operation::GlobalPool(GlobalPool::Average)));
    blocks
}
