//! Several tabs of one browser: they share a profile, and with it storage, locks and caches.

use anyhow::{Context, Result};
use fantoccini::wd::WindowHandle;
use serde_json::json;

use super::Tab;

/// One of them.
#[derive(Debug, Clone)]
pub struct BrowserWindow(WindowHandle);

impl Tab {
    /// The one that is driven now.
    ///
    /// # Errors
    /// Where it is closed.
    pub async fn window(&self) -> Result<BrowserWindow> {
        let window = self.client.window().await;
        window.map(BrowserWindow).with_context(|| format!("{}: no window", self.name()))
    }

    /// Opens `url` in another one and drives that from now on. `script` runs in each of its pages before their own.
    ///
    /// # Errors
    /// Where Chromium refuses, or the page cannot be fetched.
    pub async fn open_beside(&self, url: &str, script: &str) -> Result<BrowserWindow> {
        let opened = self.client.new_window(true).await;
        let opened = opened.with_context(|| format!("{}: no other window", self.name()))?;
        let window = BrowserWindow(opened.handle);
        self.turn_to(&window).await?;
        self.cdp("Page.addScriptToEvaluateOnNewDocument", json!({ "source": script })).await?;
        self.goto(url).await?;
        Ok(window)
    }

    /// Drives that one from now on.
    ///
    /// # Errors
    /// Where it is closed.
    pub async fn turn_to(&self, window: &BrowserWindow) -> Result<()> {
        let turned = self.client.switch_to_window(window.0.clone()).await;
        turned.with_context(|| format!("{}: no such window", self.name()))
    }

    /// Closes the one that is driven, at once, and drives `other` from now on.
    ///
    /// # Errors
    /// Where one of them is closed already.
    pub async fn close_for(&self, other: &BrowserWindow) -> Result<()> {
        self.client.close_window().await.with_context(|| format!("{}: cannot close", self.name()))?;
        self.turn_to(other).await
    }
}
