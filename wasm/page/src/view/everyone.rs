//! The run as a whole: contributors, speed, and progress toward the next step.

use barnraise_protocol::api::DeviceCount;
use barnraise_protocol::contribute::DeviceKind;
use web_sys::Element;

use crate::dom::{DomError, Field, by_id, set_attribute};
use crate::format;
use crate::state::PageState;

pub(crate) struct EveryoneView {
    epoch: Field,
    batch: Element,
    batch_text: Field,
    contributors: Field,
    speed: Field,
    devices: Field,
}

impl EveryoneView {
    pub(crate) fn find() -> Result<Self, DomError> {
        Ok(Self {
            epoch: Field::find("epoch")?,
            batch: by_id("batch")?,
            batch_text: Field::find("batch-text")?,
            contributors: Field::find("contributors")?,
            speed: Field::find("everyone-speed")?,
            devices: Field::find("devices")?,
        })
    }

    pub(crate) fn draw(&mut self, page: &PageState) {
        let Some(progress) = &page.progress else { return };
        self.epoch.set_number(&format::count(progress.epoch), progress.epoch as f64);
        let target = u64::from(progress.target_batch_size);
        let n_samples = progress.n_samples.min(target);
        set_attribute(&self.batch, "max", &target.max(1).to_string());
        set_attribute(&self.batch, "value", &n_samples.to_string());
        let sampled = page.sampled();
        self.batch_text.set_text(&match sampled {
            Some(scheme) if scheme.exchange.is_among_neighbors() => "all train each round".to_owned(),
            Some(scheme) => format!("{} train a round", format::count(scheme.sample_size.into())),
            None => {
                let (so_far, of) = (format::count(n_samples), format::count(target));
                format!("{so_far} of {of} samples toward the next")
            }
        });
        let n_contributors = progress.n_contributors;
        self.contributors.set_number(&format::count(n_contributors.into()), n_contributors.into());
        if sampled.is_some() {
            // What others train on, and how fast, is told to nobody.
            self.speed.set_number("–", 0.0);
            self.devices.set_text("not told");
        } else {
            let speed = progress.samples_per_second;
            self.speed.set_number(&format::speed(speed), speed.into());
            self.devices.set_text(&devices(&page.devices));
        }
    }
}

/// `2 browsers on WebGPU, 1 native on CUDA`.
fn devices(counts: &[DeviceCount]) -> String {
    let texts: Vec<String> = counts
        .iter()
        .filter(|count| count.n_contributors > 0)
        .map(|count| format!("{} × {}", format::count(count.n_contributors.into()), name(count.device)))
        .collect();
    if texts.is_empty() { "nobody now".into() } else { texts.join(", ") }
}

/// Display name of a device.
pub(crate) fn name(device: DeviceKind) -> &'static str {
    match device {
        DeviceKind::BrowserWebGpu => "browser with WebGPU",
        DeviceKind::BrowserCpu => "browser on its processor",
        DeviceKind::NativeCpu => "native processor",
        DeviceKind::NativeWgpu => "native graphics processor",
        DeviceKind::NativeCuda => "native CUDA card",
    }
}

/// Name of a device as on the wire, for programs.
pub(crate) fn slug(device: DeviceKind) -> String {
    serde_json::to_value(device).ok().and_then(|value| value.as_str().map(String::from)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_counted_and_absent_ones_are_not_named() {
        let count = |device, n_contributors| DeviceCount { device, n_contributors };
        let counts = [
            count(DeviceKind::BrowserWebGpu, 2),
            count(DeviceKind::BrowserCpu, 0),
            count(DeviceKind::NativeCuda, 1),
        ];
        assert_eq!(devices(&counts), "2 × browser with WebGPU, 1 × native CUDA card");
        assert_eq!(devices(&counts[1..2]), "nobody now");
        assert_eq!(slug(DeviceKind::BrowserWebGpu), "browser-web-gpu");
    }
}
