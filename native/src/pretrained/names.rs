//! Names that libraries give one and the same tensor. Pure.

/// The name that transformers gives a tensor of torchvision's ResNet: `layer2.0.bn1.bias` is
/// `resnet.encoder.stages.1.layers.0.layer.0.normalization.bias`.
pub(crate) fn resnet_name(name: &str) -> String {
    let parts: Vec<&str> = name.split('.').collect();
    let one_less = |number: &str| number.parse::<usize>().ok()?.checked_sub(1);
    let renamed = match parts[..] {
        ["conv1", tensor] => Some(format!("resnet.embedder.embedder.convolution.{tensor}")),
        ["bn1", tensor] => Some(format!("resnet.embedder.embedder.normalization.{tensor}")),
        ["fc", tensor] => Some(format!("classifier.1.{tensor}")),
        [stage, layer, ref block @ ..] => stage.strip_prefix("layer").and_then(one_less).and_then(|stage| {
            let of_layer = format!("resnet.encoder.stages.{stage}.layers.{layer}");
            match *block {
                ["downsample", "0", tensor] => Some(format!("{of_layer}.shortcut.convolution.{tensor}")),
                ["downsample", "1", tensor] => Some(format!("{of_layer}.shortcut.normalization.{tensor}")),
                [block, tensor] => {
                    let (index, kind) = match block.strip_prefix("conv") {
                        Some(index) => (index, "convolution"),
                        None => (block.strip_prefix("bn")?, "normalization"),
                    };
                    Some(format!("{of_layer}.layer.{}.{kind}.{tensor}", one_less(index)?))
                }
                _ => None,
            }
        }),
        _ => None,
    };
    renamed.unwrap_or_else(|| name.to_owned())
}
