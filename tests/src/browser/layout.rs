//! Whether the page fits its window: what a picture shows to eyes, as a list for a test.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Tab, Viewport};

const SCRIPT: &str = include_str!("layout.js");

impl Tab {
    /// What is wrong with how the page lies in a window as wide as `viewport`: wider than it, text that is cut
    /// off or lies over another, and what is too small to be hit.
    ///
    /// # Errors
    /// Where the page cannot be read.
    pub async fn layout_faults(&self, viewport: Viewport) -> Result<Vec<String>> {
        let found = self.run(SCRIPT, vec![json!(viewport.width)]).await?;
        let found = found.as_array().context("a list of faults")?;
        Ok(found.iter().filter_map(Value::as_str).map(str::to_owned).collect())
    }
}
