//! The run: title, purpose, data and model; and the connection to its web server.

use barnraise_protocol::dataset::{SampleKind, TableTarget};
use barnraise_protocol::run::RunDescription;
use web_sys::Element;

use crate::dom::{DomError, Field, by_id, clock_time, document, set_attribute};
use crate::format;
use crate::sentence::access_line;
use crate::state::{BackboneStatus, PageState};

/// Notice while the tab is connected to another backbone, which sends the run's progress only.
const WITHOUT_SERVER: &str = "The server of this page is away. This tab goes on with the run; curves and the leaderboard \
                              wait for the server.";

pub(crate) struct RunView {
    main: Element,
    stale: Field,
    live: Field,
    live_text: Field,
    access: Field,
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
            access: Field::find("access")?,
            title: Field::find("title")?,
            purpose: Field::find("purpose")?,
            dataset: Field::find("dataset")?,
            task: Field::find("task")?,
            classes: Field::find("classes")?,
            model: Field::find("model")?,
        })
    }

    pub(crate) fn draw(&mut self, page: &PageState) {
        let (state, text) = match page.backbone {
            BackboneStatus::Asking => ("asking", "Connecting"),
            BackboneStatus::Live => ("live", "Live"),
            // The worker receives the run's progress.
            BackboneStatus::Lost { .. } if page.goes_on_without_server() => ("live", "Live"),
            BackboneStatus::Lost { .. } => ("lost", "No connection"),
        };
        set_attribute(self.live.element(), "data-state", state);
        self.live_text.set_text(text);
        self.draw_age(page);
        self.access.set_text(access_line(page));
        let Some(run) = &page.run else { return };
        let title = format!("{} – Barnraise", run.identity.title);
        if document().title() != title {
            document().set_title(&title);
        }
        set_attribute(&self.main, "data-scheme", if page.is_sampled() { "sampled" } else { "synchronous" });
        self.title.set_text(&run.identity.title);
        self.purpose.set_text(&run.identity.purpose);
        let n_samples = format::count(run.data.manifest.n_samples());
        let (name, samples) = (&run.data.manifest.name, &run.data.manifest.samples);
        let (learns_from, task, answers) = match samples {
            SampleKind::Images { .. } if page.has_nothing_to_try() => (
                format!("{name}, {n_samples} pictures without their labels"),
                "Learns",
                "which pieces are of one picture".into(),
            ),
            SampleKind::Images { class_names, .. } => {
                (format!("{name}, {n_samples} pictures"), "Tells apart", class_names.join(", "))
            }
            SampleKind::Tokens(tokens) => {
                let n_different = format::count(tokens.vocabulary.into());
                let (task, what) = match page.goes_on_with_text() {
                    true => ("Foresees", "the piece that follows"),
                    false => ("Guesses", "the pieces that are masked"),
                };
                let n_pieces = format::count(tokens.length.into());
                let how_many = match run.data.manifest.stream {
                    Some(_) => "a stream of passages".to_owned(),
                    None => format!("{n_samples} passages"),
                };
                (
                    format!("{name}, {how_many} of {n_pieces} pieces of words each"),
                    task,
                    format!("{what}, out of {n_different} different ones"),
                )
            }
            SampleKind::Rows(table) => {
                let n_columns = format::count(table.columns.len() as u64);
                let (task, told) = match &table.target {
                    TableTarget::Class(names) => ("Tells apart", names.join(", ")),
                    TableTarget::Values(names) => ("Tells", names.join(", ")),
                };
                (format!("{name}, {n_samples} rows of {n_columns} numbers each"), task, told)
            }
            SampleKind::Ratings(of) => (
                format!("{name}, {n_samples} ratings"),
                "Tells",
                format!(
                    "how each of {} users would rate each of {} items",
                    format::count(of.n_users.into()),
                    format::count(of.n_items.into())
                ),
            ),
        };
        self.dataset.set_text(&learns_from);
        self.task.set_text(task);
        self.classes.set_text(&answers);
        self.model.set_text(&network(run, page.n_parameters));
    }

    /// Marks outdated numbers.
    fn draw_age(&mut self, page: &PageState) {
        let heard_at_ms = page.last_news_ms.filter(|_| page.is_stale());
        set_attribute(&self.main, "data-stale", if heard_at_ms.is_some() { "true" } else { "false" });
        let text = match heard_at_ms {
            Some(at) => Some(format!("As of {}: the backbone is away.", clock_time(at))),
            None => page.goes_on_without_server().then(|| WITHOUT_SERVER.to_owned()),
        };
        self.stale.set_optional(text.as_deref());
    }
}

fn network(run: &RunDescription, n_parameters: u64) -> String {
    format!("{}, {} parameters", run.model.graph.name, format::count(n_parameters))
}
