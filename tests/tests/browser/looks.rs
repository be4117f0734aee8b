//! Looks at a state of the page as visitors see it: on a desk and on a phone, light and dark. Each picture is kept
//! for people to look at, and what can be told without eyes is collected: what axe finds, and what does not fit.

use anyhow::{Result, ensure};
use barnraise_tests::accessibility::Axe;
use barnraise_tests::browser::{DESKTOP, PHONE, Scheme, Tab};

/// What was found so far, so that one run of a test tells all of it.
#[derive(Debug)]
pub(crate) struct Looks {
    axe: Axe,
    faults: Vec<String>,
}

impl Looks {
    pub(crate) async fn begin() -> Result<Self> {
        Ok(Self { axe: Axe::install().await?, faults: Vec::new() })
    }

    /// Looks at the page as it is now; `state` names the pictures.
    pub(crate) async fn at(&mut self, tab: &Tab, state: &str) -> Result<()> {
        for viewport in [DESKTOP, PHONE] {
            tab.resize(viewport).await?;
            self.note(&format!("{state}, {}", viewport.name), tab.layout_faults(viewport).await?);
            tab.unfold(viewport).await?;
            for scheme in [Scheme::Light, Scheme::Dark] {
                tab.prefer(scheme).await?;
                tab.settle().await?;
                let view = format!("{state}, {}, {}", viewport.name, scheme.name());
                // Colours are of the scheme and sizes of the window: two of the four views have all of them.
                if (viewport == DESKTOP) == (scheme == Scheme::Light) {
                    self.note(&view, self.axe.violations(tab).await?);
                }
                tab.picture(&format!("state-{state}-{}-{}", viewport.name, scheme.name())).await?;
            }
        }
        tab.prefer(Scheme::Light).await?;
        tab.resize(DESKTOP).await
    }

    /// Looks at it where the visitor's system forces its own colours, and wants nothing to move.
    pub(crate) async fn at_forced_colors(&mut self, tab: &Tab, state: &str) -> Result<()> {
        for scheme in [Scheme::Light, Scheme::Dark] {
            tab.prefer_all(&[
                ("forced-colors", "active"),
                ("prefers-color-scheme", scheme.name()),
                ("prefers-reduced-motion", "reduce"),
            ])
            .await?;
            let view = format!("{state}, forced colours, {}", scheme.name());
            let moving = tab.read("document.getAnimations().length").await?;
            if moving != 0 {
                self.faults.push(format!("{view}: {moving} things move for who wants none to"));
            }
            self.note(&view, self.axe.violations_in_forced_colors(tab).await?);
            tab.unfold(DESKTOP).await?;
            tab.picture(&format!("state-{state}-forced-{}", scheme.name())).await?;
        }
        tab.prefer(Scheme::Light).await?;
        tab.resize(DESKTOP).await
    }

    /// # Errors
    /// Everything that was found, if anything was.
    pub(crate) fn end(self) -> Result<()> {
        ensure!(self.faults.is_empty(), "{} faults:\n  {}", self.faults.len(), self.faults.join("\n  "));
        Ok(())
    }

    fn note(&mut self, view: &str, faults: Vec<String>) {
        self.faults.extend(faults.into_iter().map(|fault| format!("{view}: {fault}")));
    }
}
