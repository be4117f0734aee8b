//! What would keep people with a screen reader, a keyboard, weak eyes or large fingers from a page: axe-core
//! (npm) looks at the page as it is now, by the rules of WCAG 2.2 up to AA and what is good practice beside them.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::browser::Tab;
use crate::npm::NpmProgram;

const PROGRAM: NpmProgram<'static> = NpmProgram {
    name: "axe",
    files: &[
        ("package.json", include_str!("../axe/package.json")),
        ("package-lock.json", include_str!("../axe/package-lock.json")),
    ],
};
const SCRIPT: &str = "node_modules/axe-core/axe.min.js";
/// WCAG, level A and AA, and what axe recommends beyond it.
const TAGS: [&str; 7] = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22a", "wcag22aa", "best-practice"];
/// Off unless it is asked for: the size of what is to be hit.
const TARGET_SIZE: &str = "target-size";
/// Colours are not the page's where the visitor's system forces its own.
const CONTRAST: &str = "color-contrast";

/// Answers with the violations.
const RUN: &str = r#"
    const [options] = arguments;
    return axe.run(document, options).then(({ violations }) => violations);
"#;

/// axe-core, ready to be put into pages.
#[derive(Debug)]
pub struct Axe {
    source: String,
}

impl Axe {
    /// Fetches it, unless it is there.
    ///
    /// # Errors
    /// Where npm or the package cannot be had.
    pub async fn install() -> Result<Self> {
        let installed = tokio::task::spawn_blocking(|| PROGRAM.install()).await??;
        let path = installed.folder.join(SCRIPT);
        let source = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(Self { source })
    }

    /// What is wrong with what `tab` shows: for each rule, which elements break it and how to mend them.
    ///
    /// # Errors
    /// Where axe cannot be run there.
    pub async fn violations(&self, tab: &Tab) -> Result<Vec<String>> {
        self.look(tab, true).await
    }

    /// The same where the visitor's system forces its colours on the page.
    ///
    /// # Errors
    /// As [`Self::violations`].
    pub async fn violations_in_forced_colors(&self, tab: &Tab) -> Result<Vec<String>> {
        self.look(tab, false).await
    }

    async fn look(&self, tab: &Tab, has_own_colors: bool) -> Result<Vec<String>> {
        // Once for each document: what the driver runs is not bound by the page's policy.
        if tab.read("typeof axe").await? != "object" {
            tab.run(&self.source, Vec::new()).await.context("axe-core cannot be loaded")?;
        }
        let options = json!({
            "runOnly": { "type": "tag", "values": TAGS },
            "rules": { TARGET_SIZE: { "enabled": true }, CONTRAST: { "enabled": has_own_colors } },
            "resultTypes": ["violations"],
        });
        let violations = tab.run(RUN, vec![options]).await?;
        let violations = violations.as_array().context("axe does not say what it found")?;
        Ok(violations.iter().map(in_words).collect())
    }
}

/// A violation for people: the rule, how bad it is, and for each element where it is and what to do.
fn in_words(violation: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (rule, impact, help) = (text(&violation["id"]), text(&violation["impact"]), text(&violation["help"]));
    let mut words = format!("{rule} ({impact}): {help}");
    for node in violation["nodes"].as_array().into_iter().flatten() {
        // Through frames and shadow roots there is more than one.
        let targets = node["target"].as_array().cloned().unwrap_or_default();
        let place: Vec<String> = targets.iter().map(text).collect();
        let how = text(&node["failureSummary"]).split_whitespace().collect::<Vec<_>>().join(" ");
        words.push_str(&format!("\n      {}: {how}", place.join(" ")));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_names_rule_place_and_cure() {
        let violation = json!({
            "id": "color-contrast", "impact": "serious", "help": "Text must be readable",
            "nodes": [{ "target": ["#epoch"], "failureSummary": "Fix any of the following:\n  contrast of 2.1" }],
        });
        let want = "color-contrast (serious): Text must be readable\n      \
            #epoch: Fix any of the following: contrast of 2.1";
        assert_eq!(in_words(&violation), want);
    }
}
