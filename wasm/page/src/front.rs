//! The front page of a backbone with several runs: a list of them, each with a link to its own page. It has no worker
//! and contributes to nothing.

use std::cell::RefCell;
use std::rc::Rc;

use barnraise_protocol::access::AccessMode;
use barnraise_protocol::api::{DataKind, InvitationTarget, Room, RunSummary, Runs};
use barnraise_protocol::hash::Sha256Hash;
use gloo::timers::callback::Timeout;
use wasm_bindgen::JsValue;
use wasm_bindgen_futures::spawn_local;
use web_sys::{Element, HtmlAnchorElement, HtmlElement, HtmlInputElement};

use crate::base;
use crate::dom::{DomError, DomListener, Field, by_id, create, document, window};
use crate::format;
use crate::kept::{self, KeptRun};
use crate::renewal;
use crate::requests::{self, RUNS_URL};
use crate::state::AnswerError;

const ROOMS_URL: &str = "/api/rooms/";
const INVITATIONS_URL: &str = "/api/invitations/";
const LOOKING: &str = "You came with an invitation. Looking for the run that it is to…";
const ENTERING: &str = "Come in…";
/// Interval at which a visible page asks again.
const AGAIN_MS: u32 = 10_000;
/// Most runs that are shown.
const RUNS_MAX: usize = 100;

/// Why the run of an invitation is not opened. For people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum InvitationError {
    #[error(
        "You came with an invitation, and it is not known here to which run. Choose the one that you were invited to, \
         and the invitation goes along; or ask its sender for a new link."
    )]
    NotFound,
    #[error(
        "You came with an invitation, and it could not be asked just now to which run. Choose the one that you were \
         invited to, and the invitation goes along; or reload this page in a moment."
    )]
    NotAsked,
}

/// Why a room code opens no run. For people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum RoomCodeError {
    #[error(
        "No run has this code now. A code ends after some hours, or once all its places are taken: ask its sender for \
         another."
    )]
    Unknown,
    #[error("Too many codes were tried. Wait a minute, then try once more.")]
    TooOften,
    #[error("The code could not be asked for just now. Try once more in a moment.")]
    NotAsked,
}

impl From<AnswerError> for InvitationError {
    fn from(error: AnswerError) -> Self {
        if error.is_not_found() { Self::NotFound } else { Self::NotAsked }
    }
}

impl From<AnswerError> for RoomCodeError {
    fn from(error: AnswerError) -> Self {
        match error {
            AnswerError::Status(404) => Self::Unknown,
            AnswerError::Status(429) => Self::TooOften,
            AnswerError::Status(_)
            | AnswerError::NoAnswer
            | AnswerError::CutShort
            | AnswerError::Unreadable(_) => Self::NotAsked,
        }
    }
}

/// The list of runs on the page.
struct Front {
    list: Element,
    note: Field,
    room: Field,
    shown: Vec<RunCard>,
    /// The code of an invitation to one of them.
    invitation: Option<String>,
}

/// A run in the list. Only changed texts are rewritten, so that a link keeps its focus.
struct RunCard {
    id: String,
    title: HtmlElement,
    purpose: HtmlElement,
    facts: HtmlElement,
}

/// Shows the list for as long as the page is open.
pub(crate) fn show() -> Result<(), DomError> {
    document().set_title("Barnraise: the runs here");
    let (note, room) = (Field::find("runs-note")?, Field::find("room")?);
    let invitation = base::invitation();
    if let Some(code) = invitation.clone() {
        spawn_local(lead(code, Field::find("invited")?));
    }
    let front = Front { list: by_id("runs")?, note, room, shown: Vec::new(), invitation };
    ask(Rc::new(RefCell::new(front)));
    renewal::keep_page();
    let (form, code) = (by_id::<HtmlElement>("room")?, by_id::<HtmlInputElement>("room-code")?);
    let said: HtmlElement = by_id("room-said")?;
    DomListener::new(&form, "submit", move |event| {
        event.prevent_default();
        let (code, said) = (code.value(), said.clone());
        if !code.trim().is_empty() {
            spawn_local(async move {
                match enter(code.trim()).await {
                    Ok(()) => write(&said, ENTERING),
                    Err(error) => write(&said, &error.to_string()),
                }
            });
        }
    })
    .keep();
    Ok(())
}

/// Redeems a room code and opens the page of its run.
async fn enter(code: &str) -> Result<(), RoomCodeError> {
    let address = format!("{ROOMS_URL}{}", String::from(js_sys::encode_uri_component(code)));
    let Room { run, invitation } = requests::get(&address).await?;
    let opened = window().location().set_href(&base::invited_to(&run, &invitation));
    opened.map_err(|_| RoomCodeError::NotAsked)
}

/// Opens the page of an invitation's run. Old links name no run, if it was once the only one here.
async fn lead(code: String, mut said: Field) {
    said.set_optional(Some(LOOKING));
    if let Err(error) = follow(&code).await {
        said.set_optional(Some(error.to_string().as_str()));
    }
}

async fn follow(code: &str) -> Result<(), InvitationError> {
    let address = format!("{INVITATIONS_URL}{}", Sha256Hash::of(code.as_bytes()));
    let InvitationTarget { run } = requests::get(&address).await?;
    // Replaces this page, so that the back button does not lead here and forward again.
    let opened = window().location().replace(&base::invited_to(&run, code));
    opened.map_err(|_| InvitationError::NotAsked)
}

fn ask(front: Rc<RefCell<Front>>) {
    spawn_local(async move {
        if !document().hidden() || front.borrow().shown.is_empty() {
            let answer = requests::get::<Runs>(RUNS_URL).await;
            front.borrow_mut().on_answer(answer);
        }
        Timeout::new(AGAIN_MS, move || ask(front)).forget();
    });
}

impl Front {
    fn on_answer(&mut self, answer: Result<Runs, AnswerError>) {
        let mut runs = match answer {
            Ok(Runs { runs, takes_codes }) => {
                self.room.set_hidden(!takes_codes);
                runs
            }
            Err(reason) => {
                if self.shown.is_empty() {
                    self.show_kept();
                }
                let text = format!(
                    "The runs cannot be asked for just now: {reason}. This page asks again by itself."
                );
                return self.note.set_optional(Some(text.as_str()));
            }
        };
        runs.truncate(RUNS_MAX);
        let is_same = runs.iter().map(|run| &run.id).eq(self.shown.iter().map(|card| &card.id));
        if !is_same && let Err(error) = self.build(&runs) {
            gloo::console::error!("a run cannot be shown:", JsValue::from(error));
        }
        for (card, run) in self.shown.iter().zip(&runs) {
            write(&card.title, &run.title);
            write(&card.purpose, &run.purpose);
            write(&card.facts, &facts(run));
        }
        let note = runs.is_empty().then_some("No run is listed here.");
        self.note.set_optional(note);
    }

    fn build(&mut self, runs: &[RunSummary]) -> Result<(), DomError> {
        self.shown.clear();
        self.list.set_text_content(None);
        for run in runs {
            let card = RunCard {
                id: run.id.clone(),
                title: create("h2")?,
                purpose: create("p")?,
                facts: create("p")?,
            };
            let link: HtmlAnchorElement = create("a")?;
            link.set_href(&address(run, self.invitation.as_deref()));
            link.append_child(&card.title)?;
            card.facts.set_class_name("quiet");
            let item: HtmlElement = create("li")?;
            item.set_class_name("card");
            item.append_child(&link)?;
            item.append_child(&card.purpose)?;
            item.append_child(&card.facts)?;
            self.list.append_child(&item)?;
            self.shown.push(card);
        }
        Ok(())
    }

    /// Shows the stored runs of earlier visits: their models can still be tried.
    fn show_kept(&mut self) {
        let kept: Vec<RunSummary> = kept::runs().into_iter().take(RUNS_MAX).map(summary).collect();
        if let Err(error) = self.build(&kept) {
            gloo::console::error!("a run cannot be shown:", JsValue::from(error));
        }
        for (card, run) in self.shown.iter().zip(&kept) {
            write(&card.title, &run.title);
            write(&card.purpose, &run.purpose);
            write(&card.facts, "As it was at an earlier visit.");
        }
    }
}

/// Summary of a stored run, without the numbers of its progress.
fn summary((id, kept): (String, KeptRun)) -> RunSummary {
    let run = kept.run;
    let data = DataKind::of(&run.data.manifest.samples);
    RunSummary {
        id,
        title: run.identity.title,
        purpose: run.identity.purpose,
        access: run.access.mode,
        data,
        epoch: 0,
        n_contributors: 0,
        test_accuracy: None,
        is_paused: false,
    }
}

fn write(element: &HtmlElement, text: &str) {
    if element.text_content().as_deref() != Some(text) {
        element.set_text_content(Some(text));
    }
}

/// Address of a run's page, with the invitation if the run takes any.
fn address(run: &RunSummary, invitation: Option<&str>) -> String {
    match invitation.filter(|_| run.access == AccessMode::Invitation) {
        Some(code) => base::invited_to(&run.id, code),
        None => format!("{}/", base::page_of(&run.id)),
    }
}

/// Facts of a run in a line.
fn facts(run: &RunSummary) -> String {
    let data = match run.data {
        DataKind::Images => "learns from pictures",
        DataKind::Text => "learns from text",
        DataKind::Table => "learns from a table",
        DataKind::Ratings => "learns from ratings",
    };
    let halted = "This run is paused: new contributors wait until it goes on";
    let mut facts: Vec<String> = run.is_paused.then(|| halted.to_owned()).into_iter().collect();
    facts.extend([data.to_owned(), format::counted(run.epoch, "step", "steps")]);
    facts.extend(run.test_accuracy.map(|accuracy| format!("{} right", format::percent(accuracy))));
    facts.push(match run.n_contributors {
        0 => "nobody is helping now".into(),
        n => format!("{} now", format::counted(n.into(), "contributor", "contributors")),
    });
    facts.extend(match run.access {
        AccessMode::Open => None,
        AccessMode::Invitation => Some("by invitation".to_owned()),
        AccessMode::Allowlist => Some("for those on its list".to_owned()),
    });
    facts.join(" · ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> RunSummary {
        RunSummary {
            id: "a".into(),
            title: "t".into(),
            purpose: "p".into(),
            access: AccessMode::Open,
            data: DataKind::Images,
            epoch: 1234,
            n_contributors: 1,
            test_accuracy: Some(0.875),
            is_paused: false,
        }
    }

    #[test]
    fn an_invitation_goes_along_to_runs_that_take_any() {
        let mut run = run();
        assert_eq!(address(&run, Some("abc")), "/run/a/");
        run.access = AccessMode::Invitation;
        assert_eq!(address(&run, Some("abc")), "/run/a/#invitation=abc");
        assert_eq!(address(&run, None), "/run/a/");
    }

    #[test]
    fn a_run_is_described_in_a_line() {
        let mut run = run();
        assert_eq!(facts(&run), "learns from pictures · 1,234 steps · 87.5 % right · 1 contributor now");
        run.data = DataKind::Text;
        run.access = AccessMode::Invitation;
        (run.epoch, run.n_contributors, run.test_accuracy) = (1, 0, None);
        assert_eq!(facts(&run), "learns from text · 1 step · nobody is helping now · by invitation");
        run.is_paused = true;
        let want = "This run is paused: new contributors wait until it goes on · learns from text";
        assert!(facts(&run).starts_with(want), "{}", facts(&run));
    }
}
