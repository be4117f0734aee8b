//! Pictures of the page, for people: how it looks is for eyes to judge, not for a test.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::Tab;
use crate::artifacts;

/// A window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Viewport {
    /// For file names.
    pub name: &'static str,
    /// CSS pixels.
    pub width: u32,
    /// CSS pixels.
    pub height: u32,
    /// Touched, and nothing can hover.
    pub is_touched: bool,
}

/// A window on a desk.
pub const DESKTOP: Viewport = Viewport { name: "desktop", width: 1280, height: 900, is_touched: false };
/// The narrowest phone that is to be served.
pub const PHONE: Viewport = Viewport { name: "phone", width: 360, height: 740, is_touched: true };

/// What the visitor prefers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Dark on light.
    Light,
    /// Light on dark.
    Dark,
}

impl Scheme {
    /// As style sheets call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }
}

/// Picture in the README, from the root of the repository.
const README_PICTURE: &str = "docs/images/page.webp";
/// Its width in pixels.
const README_PIXELS: u32 = 800;
/// Most that the repository keeps for it.
const README_BYTES_MAX: usize = 64 * 1024;
/// Where set, the README's picture is written anew.
const WRITE_VARIABLE: &str = "BARNRAISE_WRITE_PICTURE";

/// What is fading or moving arrives at once; what never ends cannot, and goes on.
const AT_REST: &str = r"document.getAnimations().forEach((moving) => {
    try { moving.finish(); } catch { /* it has no end */ }
})";

/// The window is as wide as the argument, and what a page draws again at its next frame is drawn. One that is hidden
/// draws none.
const DRAWN: &str = r"const [width] = arguments;
    let left = 100;
    return new Promise((drawn) => {
        const look = () => {
            if (document.hidden) drawn();
            else if (matchMedia(`(width: ${width}px)`).matches || --left < 0)
                requestAnimationFrame(() => requestAnimationFrame(() => drawn()));
            else requestAnimationFrame(look);
        };
        look();
    });";

impl Tab {
    /// Makes the page believe in a window of this size, and lets it draw itself anew.
    ///
    /// # Errors
    /// Where Chromium refuses.
    pub async fn resize(&self, viewport: Viewport) -> Result<()> {
        let Viewport { width, height, is_touched, .. } = viewport;
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_touched });
        self.cdp("Emulation.setDeviceMetricsOverride", size).await?;
        let fingers = json!({ "enabled": is_touched, "maxTouchPoints": if is_touched { 5 } else { 1 } });
        self.cdp("Emulation.setTouchEmulationEnabled", fingers).await?;
        self.run(DRAWN, vec![json!(width)]).await.map(drop)
    }

    /// The same, but as high as the whole page is.
    ///
    /// # Errors
    /// As [`Tab::resize`].
    pub async fn unfold(&self, viewport: Viewport) -> Result<()> {
        self.resize(viewport).await?;
        let height = self.read("document.documentElement.scrollHeight").await?;
        let height = height.as_u64().and_then(|height| u32::try_from(height).ok());
        self.resize(Viewport { height: height.unwrap_or(viewport.height), ..viewport }).await
    }

    /// Makes the page believe in what the visitor prefers.
    ///
    /// # Errors
    /// Where Chromium refuses.
    pub async fn prefer(&self, scheme: Scheme) -> Result<()> {
        self.prefer_all(&[("prefers-color-scheme", scheme.name())]).await
    }

    /// Makes the page believe in these features of media, by name and value, and in no others.
    ///
    /// # Errors
    /// Where Chromium refuses.
    pub async fn prefer_all(&self, features: &[(&str, &str)]) -> Result<()> {
        let features: Vec<Value> =
            features.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
        self.cdp("Emulation.setEmulatedMedia", json!({ "features": features })).await.map(drop)
    }

    /// Lets everything arrive that is fading or moving.
    ///
    /// # Errors
    /// Where the page cannot be reached.
    pub async fn settle(&self) -> Result<()> {
        self.read(AT_REST).await.map(drop)
    }

    /// Saves what the window shows as `<name>.png` in the `screenshots` folder beside the builds.
    ///
    /// # Errors
    /// Where Chromium takes no picture or the folder cannot be written.
    pub async fn picture(&self, name: &str) -> Result<PathBuf> {
        let folder = artifacts::target_dir()?.join("screenshots");
        std::fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{name}.png"));
        self.settle().await?;
        let png = self.client.screenshot().await.with_context(|| format!("{}: no picture", self.name()))?;
        std::fs::write(&path, png).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// Takes the picture of the README from a window on a desk, small and compressed, and writes it into the repository
    /// where `BARNRAISE_WRITE_PICTURE` is set.
    ///
    /// # Errors
    /// Where Chromium takes no picture, or one that is too large for the repository.
    pub async fn readme_picture(&self) -> Result<()> {
        self.settle().await?;
        let Viewport { width, height, .. } = DESKTOP;
        let scale = f64::from(README_PIXELS) / f64::from(width);
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": scale });
        let how = json!({ "format": "webp", "quality": 85, "clip": clip });
        let taken = self.cdp("Page.captureScreenshot", how).await?;
        let picture = BASE64_STANDARD.decode(taken["data"].as_str().context("no picture")?)?;
        let n_bytes = picture.len();
        ensure!(n_bytes <= README_BYTES_MAX, "a picture of {n_bytes} bytes, at most {README_BYTES_MAX}");
        if std::env::var_os(WRITE_VARIABLE).is_some() {
            let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no repository")?;
            std::fs::write(repository.join(README_PICTURE), picture)?;
        }
        Ok(())
    }

    /// Saves the whole page on a desk and on a phone, light and dark. Returns how many pixels it is
    /// wider than each window, which should be none.
    ///
    /// # Errors
    /// As for [`Tab::picture`].
    pub async fn pictures(&self, name: &str) -> Result<Vec<(Viewport, u64)>> {
        let mut overflows = Vec::new();
        for viewport in [DESKTOP, PHONE] {
            self.resize(viewport).await?;
            // A phone makes its window as wide as the page.
            let width = self.read("document.documentElement.scrollWidth").await?;
            overflows.push((viewport, width.as_u64().unwrap_or(0).saturating_sub(viewport.width.into())));
            self.unfold(viewport).await?;
            for scheme in [Scheme::Light, Scheme::Dark] {
                self.prefer(scheme).await?;
                self.picture(&format!("{name}-{}-{}", viewport.name, scheme.name())).await?;
            }
        }
        self.prefer(Scheme::Light).await?;
        self.resize(DESKTOP).await?;
        Ok(overflows)
    }
}
