//! Presets against the sizes that their papers and libraries give.

use barnraise_protocol::run::model::presets::{
    Albert, Gpt, GptExperts, GptFamily, Norm, Preset, ResNet, Swav, SwavTrunk, Vit,
};

use super::*;

const PHOTOS: GraphData =
    GraphData::Images { shape: ImageShape { height: 224, width: 224, channels: 3 }, n_classes: 1000 };

fn resolved(preset: &Preset, data: GraphData) -> ResolvedGraph {
    ResolvedGraph::of(&preset.graph(), data).unwrap()
}

#[test]
fn le_net_has_the_sizes_of_the_paper() {
    let fashion =
        GraphData::Images { shape: ImageShape { height: 28, width: 28, channels: 1 }, n_classes: 10 };
    let got = resolved(&Preset::LeNet, fashion);
    let layout = got.layout();
    assert_eq!(layout.n_parameters(), 156 + 2416 + 48_120 + 10_164 + 850);
    assert_eq!(names(&got)[..4], ["conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias"]);
    assert_eq!(names(&got)[4..6], ["fc1.weight", "fc1.bias"]);
    assert_eq!(layout.segments()[4].shape, [400, 120]);
    assert!(got.statistics().is_empty());
    let small = GraphData::Images { shape: ImageShape { height: 11, width: 28, channels: 1 }, n_classes: 10 };
    let refused = ResolvedGraph::of(&Preset::LeNet.graph(), small).unwrap_err();
    assert!(refused.to_string().starts_with("block `pool2`: padded maps of at least 2 by 2"), "{refused}");
}

#[test]
fn residual_networks_have_the_sizes_of_torchvision() {
    let options = ResNet::default();
    let small = resolved(&Preset::ResNet18(options), PHOTOS);
    assert_eq!(small.layout().n_trained(), 11_689_512);
    assert_eq!(resolved(&Preset::ResNet50(options), PHOTOS).layout().n_trained(), 25_557_032);
    // Means and variances of the twenty normalizations, as in torchvision's buffers.
    assert_eq!(small.layout().n_parameters() - small.layout().n_trained(), 9_600);
    let group = ResNet { norm: Norm::Group(32), ..options };
    let group = resolved(&Preset::ResNet18(group), PHOTOS);
    assert_eq!(group.layout().segments(), small.layout().trained());
    assert!(group.statistics().is_empty());
    let names = names(&small);
    for name in ["conv1.weight", "layer1.1.bn2.bias", "layer2.0.downsample.0.weight", "layer4.1.conv2.weight"]
    {
        assert!(names.contains(&name), "{name}");
    }
}

#[test]
fn transformers_have_the_sizes_of_their_libraries() {
    let vit = Vit { patch: 16, width: 768, layers: 12, heads: 12 };
    assert_eq!(resolved(&Preset::Vit(vit), PHOTOS).layout().n_parameters(), 86_567_656);
    let text = GraphData::Tokens { length: 1024, vocabulary: 50_257, n_masked: 154 };
    let gpt = Gpt { dropout: 0.1, ..Gpt::new(GptFamily::Gpt2, 768, 12, 12) };
    let gpt2 = resolved(&Preset::Gpt(gpt), text);
    assert_eq!(gpt2.layout().n_parameters(), 124_439_808);
    assert!(gpt2.draws_numbers());
    assert!(names(&gpt2).contains(&"transformer.h.11.attn.c_attn.weight"));
    // Llama's shape as `LlamaConfig(vocab_size=1000, hidden_size=64, intermediate_size=172, num_hidden_layers=3,
    // num_attention_heads=8, num_key_value_heads=2, tie_word_embeddings=True)` counts it.
    let llama = Gpt { key_value_heads: 2, inner: 172, ..Gpt::new(GptFamily::Llama, 64, 3, 8) };
    let text = GraphData::Tokens { length: 32, vocabulary: 1000, n_masked: 5 };
    let layer = 2 * 64 * 64 + 2 * 64 * 16 + 3 * 64 * 172 + 2 * 64;
    assert_eq!(resolved(&Preset::Gpt(llama), text).layout().n_parameters(), 64_000 + 3 * layer + 64);
    // Mixtral's with 4 experts, as `MixtralConfig` counts it.
    let mixtral = Gpt { experts: Some(GptExperts { side: 4, dimensions: 1, active: 2 }), ..llama };
    let mixtral = resolved(&Preset::Gpt(mixtral), text);
    let layer = layer + 64 * 4 + 3 * 3 * 64 * 172;
    assert_eq!(mixtral.layout().n_parameters(), 64_000 + 3 * layer + 64);
    assert!(names(&mixtral).contains(&"model.layers.2.block_sparse_moe.experts.3.w2.weight"));
    let albert = Albert { embedding: 128, hidden: 768, heads: 12, inner: 3072, layers: 12 };
    let text = GraphData::Tokens { length: 512, vocabulary: 30_000, n_masked: 77 };
    let albert = resolved(&Preset::Albert(albert), text);
    // albert-base-v2 for masked language modelling has 11,221,680, of which 256 are token types.
    assert_eq!(albert.layout().n_parameters(), 11_221_680 - 256);
}

#[test]
fn swav_and_ratings_resolve() {
    let swav = Swav {
        trunk: SwavTrunk::ResNet18(ResNet { small_pictures: true, width: 8, norm: Norm::Batch }),
        hidden: 24,
        projection: 6,
        prototypes: 10,
        small_crops: 2,
        small_side: 12,
        queue_samples: 0,
        queue_after: 0,
        frozen_epochs: 1,
    };
    let swav = resolved(&Preset::Swav(swav), IMAGES);
    let last = swav.layout().trained().last().unwrap();
    assert_eq!(last.name, "prototypes.weight");
    let ratings = GraphData::Ratings { n_users: 943, n_items: 1682 };
    let factors = resolved(&Preset::MatrixFactorization { factors: 16 }, ratings);
    assert_eq!(factors.layout().n_parameters(), (943 + 1682) * 17 + 1);
}

#[test]
fn presets_have_a_short_form() {
    #[derive(serde::Deserialize)]
    struct Model {
        kind: Preset,
    }
    let read = |text: &str| toml::from_str::<Model>(text).map(|model| model.kind);
    assert_eq!(read("kind = \"le-net\"").unwrap(), Preset::LeNet);
    let small = ResNet { norm: Norm::Group(16), small_pictures: true, width: 32 };
    let text = "kind = { resnet-18 = { norm = { group = 16 }, small_pictures = true, width = 32 } }";
    assert_eq!(read(text).unwrap(), Preset::ResNet18(small));
    assert_eq!(read("[kind.resnet-50]").unwrap(), Preset::ResNet50(ResNet::default()));
    let text = "[kind.gpt]\nfamily = \"llama\"\nwidth = 64\nlayers = 2\nheads = 4";
    assert!(matches!(read(text).unwrap(), Preset::Gpt(Gpt { family: GptFamily::Llama, .. })));
    assert!(read("[kind.gpt]\nwidht = 64").is_err());
}
