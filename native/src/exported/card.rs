//! The card of a folder: the run's, with how to load what is in the folder. Pure.

use std::fmt::Write as _;

use barnraise_learning::ParameterLayout;
use barnraise_protocol::dataset::SampleKind;
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::run::model::presets::{Norm, ResNet};

use super::architecture::{Architecture, ResNetDepth};
use super::hub;
use crate::host::models::quoted;

/// Where the run's card says how to load the file that its server has.
const LOADING: &str = "## How to load it";
/// Width of the residual networks of torchvision.
const TORCHVISION_WIDTH: u32 = 64;

/// `README.md` of a folder. `card`: the run's; `layout`: the tensors as they are in the folder.
pub(super) fn of_folder(card: &str, run: &RunDescription, layout: &ParameterLayout) -> String {
    let about = card.split_once(LOADING).map_or(card, |(about, _)| about).trim_end();
    let mut text = format!("{about}\n\n{LOADING}\n\n{}\n\nThe tensors, f32:\n\n", loading(run));
    for segment in layout.segments() {
        let _ = writeln!(text, "- `{}` {:?}", segment.name, segment.shape);
    }
    text
}

/// The card of a model that was had from peers: none of them says how good it is.
pub(super) fn of_peers(run: &RunDescription, epoch: u64) -> String {
    let (identity, what) = (&run.identity, if run.sampled().is_some() { "rounds" } else { "steps" });
    format!(
        "---\nlicense: other\nlicense_name: not-stated\ndatasets:\n- {}\n---\n\n# {}\n\n{}\n\nThe model of the run `{}` after {epoch} {what}, \
         as its participants had it. Nobody evaluated it: `barnraise evaluate` does.\n",
        quoted(&run.data.manifest.name),
        identity.title,
        identity.purpose,
        identity.run_id,
    )
}

/// Paths are relative to the folder.
fn loading(run: &RunDescription) -> String {
    let with_text = "from transformers import {class}, AutoTokenizer\n\nmodel = {class}.from_pretrained(\".\")\n\
        tokenizer = AutoTokenizer.from_pretrained(\".\")";
    let with_pictures = "from transformers import pipeline\n\ntells = pipeline(\"image-classification\", \".\")\n\
        print(tells(\"photo.jpg\"))";
    let (said, code) = match (hub::auto_class(run), Architecture::of(&run.model.graph)) {
        (Some(_), Some(Architecture::ResNet(..))) => ("With `transformers`:", with_pictures.to_owned()),
        (Some(class), _) => ("With `transformers`:", with_text.replace("{class}", class)),
        (None, Some(Architecture::ResNet(depth, options))) if options.width == TORCHVISION_WIDTH => {
            ("With torchvision, which `transformers` has no network for:", torchvision(run, depth, options))
        }
        (None, _) => (
            "The weight of a linear layer is `[out, in]`, as in PyTorch. `barnraise.json` has the graph whose blocks the \
             tensors are named after.",
            "from safetensors.torch import load_file\n\ntensors = load_file(\"model.safetensors\")"
                .to_owned(),
        ),
    };
    format!("{said}\n\n```python\n{code}\n```")
}

fn torchvision(run: &RunDescription, depth: ResNetDepth, options: ResNet) -> String {
    let SampleKind::Images { shape, class_names } = &run.data.manifest.samples else { return String::new() };
    let (channels, n_classes) = (shape.channels, class_names.len());
    let name = match depth {
        ResNetDepth::Of18 => "resnet18",
        ResNetDepth::Of50 => "resnet50",
    };
    let norm = match options.norm {
        Norm::Batch => String::new(),
        Norm::Group(groups) => format!(", norm_layer=lambda n: nn.GroupNorm({groups}, n)"),
    };
    let first = match options.small_pictures {
        true => format!(
            "model.conv1 = nn.Conv2d({channels}, 64, 3, padding=1, bias=False)\nmodel.maxpool = nn.Identity()\n"
        ),
        false => format!("model.conv1 = nn.Conv2d({channels}, 64, 7, stride=2, padding=3, bias=False)\n"),
    };
    format!(
        "from safetensors.torch import load_file\nfrom torch import nn\nfrom torchvision.models import {name}\n\n\
         model = {name}(num_classes={n_classes}{norm})\n{first}model.load_state_dict(load_file(\"model.safetensors\"))\n\
         model.eval()"
    )
}

#[cfg(test)]
mod tests {
    use barnraise_learning::{DataShape, ParameterLayout};
    use barnraise_protocol::dataset::ImageShape;
    use barnraise_protocol::run::Preset;

    use super::*;
    use crate::fixture;

    fn card(preset: &Preset) -> String {
        let mut run = fixture::run();
        run.model = preset.model(7);
        run.data.manifest.samples = SampleKind::Images {
            shape: ImageShape { height: 32, width: 32, channels: 3 },
            class_names: ["cat", "dog"].map(str::to_owned).into(),
        };
        let data = DataShape::of(&run.data.manifest.samples);
        let layout = ParameterLayout::of(&run.model, data).unwrap_or_default();
        of_folder("# Pets\n\nOf a run.\n\n## How to load it\n\nOtherwise.\n", &run, &layout)
    }

    #[test]
    fn the_card_says_how_to_load_what_is_in_the_folder() {
        let options = ResNet::default();
        let plain = card(&Preset::ResNet18(options));
        assert!(
            plain.starts_with("# Pets\n\nOf a run.\n\n## How to load it\n\nWith `transformers`:"),
            "{plain}"
        );
        assert!(!plain.contains("Otherwise") && plain.contains("pipeline("), "{plain}");
        let small = ResNet { norm: Norm::Group(16), small_pictures: true, ..options };
        let small = card(&Preset::ResNet50(small));
        for part in ["resnet50(num_classes=2, norm_layer=lambda n: nn.GroupNorm(16, n))", "nn.Identity()"] {
            assert!(small.contains(part), "{part} is missing in {small}");
        }
        let narrow = card(&Preset::ResNet18(ResNet { small_pictures: true, width: 8, ..options }));
        assert!(narrow.contains("load_file(") && !narrow.contains("torchvision"), "{narrow}");
        assert!(card(&Preset::LeNet).contains("- `conv1.weight` [6, 3, 5, 5]\n"));
    }
}
