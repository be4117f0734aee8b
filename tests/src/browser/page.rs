//! Waiting for the page and reading it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use fantoccini::Locator;
use fantoccini::wd::TimeoutConfiguration;
use serde_json::{Value, json};

use super::Tab;

/// What a condition may use. Spaces that keep a number with its unit are spaces like any other. `value` is the raw
/// number beside a text, NaN where there is none yet.
const WORDS: &str = r#"
    const element = (id) => document.getElementById(id);
    const text = (id) => (element(id)?.textContent ?? "").replaceAll("\u00a0", " ");
    const value = (id) => Number(element(id)?.dataset.value || NaN);
    const doing = () => element("activity")?.dataset.doing;
"#;

/// Answers once the condition holds. The condition is tested after each change of the document,
/// because the page shows all its state there.
const UNTIL: &str = r#"
    const [at_most_ms] = arguments;
    const done = arguments[arguments.length - 1];
    const finish = (outcome) => { observer.disconnect(); clearTimeout(timer); done(outcome); };
    const look = () => {
        try {
            const found = condition();
            if (found) finish({ found });
        } catch (error) {
            finish({ error: String(error) });
        }
    };
    const observer = new MutationObserver(look);
    const timer = setTimeout(() => finish({}), at_most_ms);
    observer.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
    look();
"#;

/// What the page shows, for messages.
const SUMMARY: &str = r#"
    const shown = {};
    for (const element of document.querySelectorAll("[data-value]")) shown[element.id] = element.dataset.value;
    for (const id of ["live-text", "activity", "device", "notice", "refusal", "prediction"]) shown[id] = text(id);
    return { ...shown, doing: doing(), at: location.href };
"#;

/// What chromedriver says of a script whose document is gone: at once, or, where the page is left
/// while the script is on its way to it, only when the script has been waited for in vain.
const UNLOADED: [&str; 2] = ["document unloaded", "script timeout"];

/// How long one script looks at the page before the page is asked anew.
const LOOK: Duration = Duration::from_secs(5);

/// How long any other script may take: one tries the whole page for faults, beside many other programs.
const SCRIPT_MAX: Duration = Duration::from_secs(120);

/// How much later than the page itself its browser may be before it counts as hung.
const GRACE: Duration = Duration::from_secs(30);

impl Tab {
    /// Waits until a condition in JavaScript is true of the page and returns its value. It may use
    /// `element(id)`, `text(id)`, `value(id)` and `doing()`.
    ///
    /// # Errors
    /// Where it does not come true within `at_most`: with the page's sentence and numbers, its
    /// console and a picture.
    pub async fn until(&self, condition: &str, at_most: Duration) -> Result<Value> {
        let timeouts = TimeoutConfiguration::new(Some(2 * LOOK), Some(at_most + GRACE), None);
        self.client.update_timeouts(timeouts).await?;
        let script = format!("{WORDS} const condition = () => ({condition}); {UNTIL}");
        let until = Instant::now() + at_most;
        let waiting = async {
            loop {
                let left = until.saturating_duration_since(Instant::now());
                let look_ms = u64::try_from(left.min(LOOK).as_millis()).unwrap_or(u64::MAX);
                match self.client.execute_async(&script, vec![json!(look_ms)]).await {
                    Ok(outcome) if outcome.as_object().is_none_or(serde_json::Map::is_empty) => {}
                    // The document was replaced meanwhile: the next one is tested.
                    Err(error) if UNLOADED.iter().any(|said| error.to_string().contains(said)) => {}
                    asked => return asked.map(Some),
                }
                if left.is_zero() {
                    return Ok(None);
                }
            }
        };
        let waited = tokio::time::timeout(at_most + 2 * GRACE, waiting).await;
        let Ok(waited) = waited else { bail!("{}: the browser hangs, waiting for {condition}", self.name()) };
        // A browser that is gone says so when it is asked next.
        let _ = self.allow_scripts().await;
        let outcome = match waited {
            Err(error) => Err(anyhow!(error)).context("the page could not be asked"),
            Ok(None) => Err(anyhow!("not within {} s", at_most.as_secs())),
            Ok(Some(outcome)) => match outcome.get("found") {
                Some(found) => return Ok(found.clone()),
                None => Err(anyhow!("the condition fails: {}", outcome["error"])),
            },
        };
        let wanted = format!("{}: waited for {condition}", self.name());
        outcome.context(self.describe().await).context(wanted)
    }

    /// Gives scripts their time: while the page is looked at, they have less.
    pub(super) async fn allow_scripts(&self) -> Result<()> {
        let timeouts = TimeoutConfiguration::new(Some(SCRIPT_MAX), None, None);
        let allowed = self.client.update_timeouts(timeouts).await;
        allowed.with_context(|| format!("{}: no time for scripts", self.name()))
    }

    /// The value of an expression, which may use the words of [`Tab::until`].
    ///
    /// # Errors
    /// Where it throws.
    pub async fn read(&self, expression: &str) -> Result<Value> {
        let found = self.client.execute(&format!("{WORDS} return ({expression});"), Vec::new()).await;
        found.with_context(|| format!("{}: {expression}", self.name()))
    }

    /// Runs the body of a function with these arguments, not bound by the page's own policy. What it returns, or
    /// what that promises.
    ///
    /// # Errors
    /// Where it throws.
    pub async fn run(&self, body: &str, arguments: Vec<Value>) -> Result<Value> {
        let found = self.client.execute(body, arguments).await;
        found.with_context(|| format!("{}: a script", self.name()))
    }

    /// The raw number of the element `id`.
    ///
    /// # Errors
    /// Where it has none.
    pub async fn number(&self, id: &str) -> Result<f64> {
        let found = self.read(&format!("value({})", json!(id))).await?;
        found.as_f64().with_context(|| format!("{}: #{id} has no number", self.name()))
    }

    /// The text of the element `id`.
    ///
    /// # Errors
    /// Where the page cannot be read.
    pub async fn text(&self, id: &str) -> Result<String> {
        let found = self.read(&format!("text({})", json!(id))).await?;
        Ok(found.as_str().unwrap_or_default().to_owned())
    }

    /// Chooses a file in the input that `css` selects.
    ///
    /// # Errors
    /// Where there is none, or it takes no file.
    pub async fn choose_file(&self, css: &str, path: &Path) -> Result<()> {
        let input = self.client.find(Locator::Css(css)).await;
        let input = input.with_context(|| format!("{}: no {css}", self.name()))?;
        let path = path.to_str().context("a path in UTF-8")?;
        input.send_keys(path).await.with_context(|| format!("{}: {css} takes no file", self.name()))
    }

    /// Clicks on the first element that `css` selects, as a mouse does.
    ///
    /// # Errors
    /// Where there is none, or another element covers it.
    pub async fn click(&self, css: &str) -> Result<()> {
        let found = self.client.find(Locator::Css(css)).await;
        let element = found.with_context(|| format!("{}: no {css} to click on", self.name()))?;
        element.click().await.with_context(|| format!("{}: {css} takes no click", self.name()))
    }

    /// Draws lines on the element that `css` selects, with the left button held: each stroke is a
    /// list of points in pixels from the element's centre.
    ///
    /// # Errors
    /// Where there is no such element or the pointer leaves the window.
    pub async fn draw(&self, css: &str, strokes: &[&[(i64, i64)]]) -> Result<()> {
        use fantoccini::actions::{InputSource, MOUSE_BUTTON_LEFT, MouseActions, PointerAction};
        let element = self.client.find(Locator::Css(css)).await?;
        self.read(&format!("document.querySelector({}).scrollIntoView()", json!(css))).await?;
        let mut mouse = MouseActions::new("mouse".into());
        for stroke in strokes {
            for (idx, &(x, y)) in stroke.iter().enumerate() {
                let (x, y) = (x as f64, y as f64);
                let element = element.clone();
                mouse = mouse.then(PointerAction::MoveToElement { element, duration: None, x, y });
                if idx == 0 {
                    mouse = mouse.then(PointerAction::Down { button: MOUSE_BUTTON_LEFT });
                }
            }
            mouse = mouse.then(PointerAction::Up { button: MOUSE_BUTTON_LEFT });
        }
        Ok(self.client.perform_actions(mouse).await?)
    }

    /// Everything that helps to see why a test fails.
    async fn describe(&self) -> String {
        let script = format!("{WORDS} {SUMMARY}");
        let shown = match self.client.execute(&script, Vec::new()).await {
            Ok(shown) => format!("{shown:#}"),
            Err(error) => format!("the page cannot be read: {error}"),
        };
        let console = self.console().await.join("\n    ");
        let picture = match self.picture(&format!("failed-{}", self.name())).await {
            Ok(path) => path.display().to_string(),
            Err(error) => format!("none: {error:#}"),
        };
        format!("it shows {shown}\n  console:\n    {console}\n  picture: {picture}")
    }
}
