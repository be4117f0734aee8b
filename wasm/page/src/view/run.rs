//! What is being trained and for whom, and whether the backbone is there.

use barnraise_protocol::dataset::SampleKind;
use barnraise_protocol::run::{ModelKind, RunDescription};
use web_sys::Element;

use crate::dom::{DomError, Field, by_id, clock_time, document, set_attribute};
use crate::format;
use crate::state::{Backbone, Page};

/// While the tab is with another backbone, which says how the run stands and nothing more.
const WITHOUT_SERVER: &str = "The server of this page is away. This tab goes on with the run; curves and the list of \
                              who gave wait for the server.";

pub(crate) struct RunView {
    main: Element,
    stale: Field,
    live: Field,
    live_text: Field,
    title: Field,
    purpose: Field,
    dataset: Field,
    task: Field,
    classes: Field,
    model: Field,
}

impl RunView {
    pub(crate) fn find() -> Result<Self, DomError> {
        Ok(Self {
            main: by_id("main")?,
            stale: Field::find("stale")?,
            live: Field::find("live")?,
            live_text: Field::find("live-text")?,
            title: Field::find("title")?,
            purpose: Field::find("purpose")?,
            dataset: Field::find("dataset")?,
            task: Field::find("task")?,
            classes: Field::find("classes")?,
            model: Field::find("model")?,
        })
    }

    pub(crate) fn draw(&mut self, page: &Page) {
        let (state, text) = match page.backbone {
            Backbone::Asking => ("asking", "Connecting"),
            Backbone::Live => ("live", "Live"),
            // The tab hears of the run all the same.
            Backbone::Lost { .. } if page.goes_on_without_server() => ("live", "Live"),
            Backbone::Lost { .. } => ("lost", "No connection"),
        };
        set_attribute(self.live.element(), "data-state", state);
        self.live_text.set_text(text);
        self.draw_age(page);
        let Some(run) = &page.run else { return };
        let title = format!("{} – Barnraise", run.title);
        if document().title() != title {
            document().set_title(&title);
        }
        self.title.set_text(&run.title);
        self.purpose.set_text(&run.purpose);
        let n_samples = format::count(run.manifest.n_samples());
        let (name, samples) = (&run.manifest.name, &run.manifest.samples);
        let (learns_from, task, answers) = match samples {
            SampleKind::Images { .. } if page.has_nothing_to_try() => (
                format!("{name}, {n_samples} pictures without their labels"),
                "Learns",
                "which pieces are of one picture".into(),
            ),
            SampleKind::Images { class_names, .. } => {
                (format!("{name}, {n_samples} pictures"), "Tells apart", class_names.join(", "))
            }
            SampleKind::Tokens(tokens) => (
                format!("{name}, {n_samples} pieces of {} tokens each", format::count(tokens.length.into())),
                "Guesses",
                format!("words that are masked, out of {} tokens", format::count(tokens.vocabulary.into())),
            ),
        };
        self.dataset.set_text(&learns_from);
        self.task.set_text(task);
        self.classes.set_text(&answers);
        self.model.set_text(&network(run));
    }

    /// Numbers that nobody brings up to date do not look as if they were.
    fn draw_age(&mut self, page: &Page) {
        let heard_at_ms = page.heard_at_ms.filter(|_| page.is_stale());
        set_attribute(&self.main, "data-stale", if heard_at_ms.is_some() { "true" } else { "false" });
        let text = match heard_at_ms {
            Some(at) => Some(format!("As of {}: the backbone is away.", clock_time(at))),
            None => page.goes_on_without_server().then(|| WITHOUT_SERVER.to_owned()),
        };
        self.stale.set_optional(text.as_deref());
    }
}

fn network(run: &RunDescription) -> String {
    let parameters = format::count(run.n_parameters);
    match &run.model.kind {
        ModelKind::LeNet => format!("LeNet, {parameters} parameters"),
        ModelKind::Mlp { hidden } => {
            let widths: Vec<String> = hidden.iter().map(|&width| format::count(width.into())).collect();
            format!(
                "fully connected, {} units in its hidden layers, {parameters} parameters",
                widths.join(" and ")
            )
        }
        ModelKind::Albert { hidden, layers, .. } => {
            let (hidden, layers) = (format::count((*hidden).into()), format::count((*layers).into()));
            format!("ALBERT, one layer of {hidden} units applied {layers} times, {parameters} parameters")
        }
        ModelKind::Swav { maps, prototypes, .. } => {
            let (n, prototypes) = (maps.len() as u64, format::count((*prototypes).into()));
            let convolutions = format::counted(n, "convolution", "convolutions");
            format!("SwAV, {convolutions} and {prototypes} prototypes, {parameters} parameters")
        }
    }
}
