//! The status sentence: what the tab does, or why it waits. Pure.

mod hosting;

use barnraise_messages::{Activity, DeviceChange, DeviceChoice, Interruption};
use barnraise_protocol::access::AccessMode;
use barnraise_protocol::contribute::DeviceKind;

use crate::format;
use crate::limits::{PauseReason, words};
use crate::preflight::WebGpu;
use crate::state::{Admission, BackboneLoss, BackboneStatus, PageState, TabRole, WorkerState};

pub(crate) use hosting::{hosting_button, hosting_sentence};

/// Answer to a question whose worker has crashed; another question loads a new worker.
pub(crate) const UNANSWERED: &str = "No answer: the training program stopped. Ask once more to load it anew.";

/// The status sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sentence {
    /// Kind of the sentence, for tests and for the style sheet.
    pub(crate) doing: &'static str,
    /// Text.
    pub(crate) text: String,
    /// A text that changes seldom, for screen readers.
    pub(crate) spoken: String,
    /// One of the sentences that alternate in every step.
    pub(crate) is_routine: bool,
}

impl Sentence {
    fn new(doing: &'static str, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { doing, spoken: text.clone(), text, is_routine: false }
    }

    /// Sets another text for screen readers, where numbers change too often to be read aloud.
    fn spoken_as(self, spoken: impl Into<String>) -> Self {
        Self { spoken: spoken.into(), ..self }
    }
}

/// The current status.
pub(crate) fn sentence(page: &PageState) -> Sentence {
    if let Some(sentence) = unsupported(page).or_else(|| trouble(page)) {
        return sentence;
    }
    match (&page.peer, &page.backbone) {
        (WorkerState::Loading { bytes, bytes_total }, _) => loading(page, *bytes, *bytes_total),
        // Work in progress is delivered first.
        (WorkerState::Absent, _) if page.pause().is_some() => paused(page),
        (WorkerState::Ready { .. }, _) if page.pause().is_some() && page.activity == Activity::Idle => {
            paused(page)
        }
        (WorkerState::Ready { device, .. }, _) if page.contributing || page.activity != Activity::Idle => {
            activity(page, *device)
        }
        (_, BackboneStatus::Asking) => Sentence::new("asking", "Asking what is being trained here…"),
        (_, BackboneStatus::Lost { .. }) if page.endurance.is_offline => {
            let then = if page.contributing { " This tab then goes on by itself." } else { "" };
            Sentence::new("unreachable", format!("This device has no network. Waiting for it.{then}"))
        }
        (_, BackboneStatus::Lost { reason: BackboneLoss::Answer(error), .. }) if error.is_not_found() => {
            Sentence::new("unreachable", "This run is not at this address any more. It may have ended.")
        }
        (_, BackboneStatus::Lost { reason, retry_in_ms }) => {
            let wait = format::wait(*retry_in_ms);
            let then = if page.contributing { " This tab then begins by itself." } else { "" };
            Sentence::new(
                "unreachable",
                format!("The backbone cannot be reached ({reason}). Trying again {wait}.{then}"),
            )
            .spoken_as("The backbone cannot be reached. Trying again.")
        }
        (_, BackboneStatus::Live) if page.contributing && page.reads_own() => reading(),
        // The tab that has the work was asked, and has not answered yet.
        (_, BackboneStatus::Live) if page.contributing => Sentence::new("idle", "About to begin…"),
        (_, BackboneStatus::Live) => resting(page),
    }
}

/// A worker's program is on its way.
fn loading(page: &PageState, bytes: u64, bytes_total: Option<u64>) -> Sentence {
    match bytes_total {
        _ if bytes == 0 => Sentence::new("loading", "Fetching the training program…"),
        Some(total) if bytes >= total => Sentence::new("preparing", "Getting the training program ready…"),
        _ => {
            let so_far = format::share_of(bytes, bytes_total, page.preflight.program_bytes);
            Sentence::new("loading", format!("Fetching the training program: {so_far}."))
                .spoken_as("Fetching the training program…")
        }
    }
}

fn unsupported(page: &PageState) -> Option<Sentence> {
    let text = "This page did not come over HTTPS, so the browser will not let it compute or connect. \
        You can still watch.";
    (!page.capabilities.secure).then(|| Sentence::new("unsupported", text))
}

fn trouble(page: &PageState) -> Option<Sentence> {
    if let Some(reason) = page.endurance.reviving.as_ref() {
        let text = format!("The training program stopped ({reason}). It is started again in a moment.");
        let spoken = "The training program stopped. It is started again in a moment.";
        return Some(Sentence::new("reviving", text).spoken_as(spoken));
    }
    // The server no longer has this build's program, so Start cannot help.
    if let Some(reason) = page.trouble.as_ref().filter(|reason| reason.is_of_version()) {
        return Some(Sentence::new("broken", format!("The training program cannot be had: {reason}.")));
    }
    let reason = page.trouble.as_ref()?;
    let advice = match (reason.is_of_memory(), page.pass_samples_max()) {
        (true, None) => "This device has little memory: close other tabs, then Start loads it anew.".into(),
        (true, Some(n)) => format!(
            "This device has little memory: close other tabs, then Start loads it anew, for {} at a time.",
            format::counted(n.into(), "sample", "samples")
        ),
        (false, _) => "Start loads it anew.".to_owned(),
    };
    Some(Sentence::new("broken", format!("The training program stopped: {reason}. {advice}")))
}

/// The reason of the pause, and what ends it.
fn paused(page: &PageState) -> Sentence {
    let text = match page.pause() {
        // The visitor who reads this has another tab in front.
        Some(PauseReason::Hidden) if page.role() == TabRole::Following => {
            "Paused: the tab that has the work is not in front. It goes on by itself when it is.".into()
        }
        Some(PauseReason::Elsewhere) => words::elsewhere(page.elsewhere()),
        reason => reason.map(words::pause).unwrap_or_default(),
    };
    Sentence::new("paused", text)
}

/// The operator paused the run: what that means for this tab.
fn halted(reason: &str, then: &str) -> Sentence {
    let reason = reason.trim_end_matches('.');
    Sentence::new("halted", format!("This run is paused: {reason}. {then}"))
}

fn resting(page: &PageState) -> Sentence {
    if let Some(reason) = &page.operator_pause {
        let then =
            "No steps are made until it goes on. A tab that starts now waits, and begins by itself then.";
        return halted(reason, then);
    }
    let text = match page.contribution.n_samples_accepted {
        0 if page.lacks_invitation() => "This tab watches the run.".into(),
        0 if page.is_among_neighbors() => "Resting. Press Start, and this tab trains in each round.".into(),
        0 if page.is_sampled() => "Resting. Press Start, and this tab trains when it is drawn.".into(),
        0 => "Resting. Press Start, and this tab helps with the next step.".into(),
        n => format!("Resting. This tab gave {}. Thank you.", format::counted(n, "sample", "samples")),
    };
    Sentence::new("idle", text)
}

/// Start was pressed while files of the visitor's own are being read.
fn reading() -> Sentence {
    Sentence::new("preparing", "Reading your files. This tab begins when they are read.")
}

fn activity(page: &PageState, device: DeviceKind) -> Sentence {
    if let (Activity::WaitingForOthers { .. }, Some(reason)) = (&page.activity, &page.operator_pause) {
        return halted(reason, "What this tab has handed in counts. It waits, and goes on by itself.");
    }
    match &page.activity {
        Activity::Idle if page.reads_own() || page.must_check_own_files() => reading(),
        Activity::Idle => Sentence::new("idle", "About to begin…"),
        Activity::Connecting => Sentence::new("connecting", "Connecting to the backbone…"),
        Activity::SigningIn { .. } => {
            Sentence::new("signing-in", "This run is for those on its list: sign in, and this goes on.")
        }
        // Without a network the reason is of no use; with one it is among the details of the preflight.
        Activity::Reconnecting { .. } if page.endurance.is_offline => {
            let text = "This device has no network. Waiting for it; then this tab goes on by itself.";
            Sentence::new("reconnecting", text)
        }
        // The connection was made; another backbone, or the same one later, may let this tab in.
        Activity::Reconnecting {
            retry_in_ms,
            reason: reason @ (Interruption::Refused { .. } | Interruption::NoInvitation),
        } => {
            let wait = format::wait(*retry_in_ms);
            Sentence::new("reconnecting", format!("Not let in yet: {reason}. Trying again {wait}."))
                .spoken_as(format!("Not let in yet: {reason}. Trying again."))
        }
        Activity::Reconnecting { retry_in_ms, .. } => {
            let wait = format::wait(*retry_in_ms);
            Sentence::new("reconnecting", format!("No connection to the backbone. Trying again {wait}."))
                .spoken_as("No connection to the backbone. Trying again.")
        }
        Activity::FetchingModel { bytes, bytes_total } => {
            let so_far = format::transfer(*bytes, Some(*bytes_total));
            joining(page, Sentence::new("fetching-model", format!("Fetching the newest model: {so_far}.")))
        }
        Activity::FetchingData { bytes, bytes_total } => {
            let so_far = format::transfer(*bytes, Some(*bytes_total));
            joining(
                page,
                Sentence::new(
                    "fetching-data",
                    format!("Fetching {} to learn from: {so_far}.", page.samples_in_words()),
                ),
            )
        }
        Activity::WarmingUp => {
            let text =
                format!("Warming up {}. The first pass takes a little longer.", device_in_words(device));
            joining(page, Sentence::new("warming-up", text))
        }
        Activity::Training { epoch } => {
            let (samples, device) = (page.samples_in_words(), device_in_words(device));
            let step = step(page, *epoch);
            let text = match page.is_sampled() && !page.is_among_neighbors() {
                true => {
                    format!("In the sample of {step}: learning from {samples} on {device}{}.", share(page))
                }
                false => format!("Learning from {samples} for {step} on {device}{}.", share(page)),
            };
            at_work(Sentence::new("training", text + &missed(page)))
        }
        Activity::Sending { epoch, bytes, bytes_total } => {
            let so_far = format::transfer(*bytes, Some(*bytes_total));
            at_work(Sentence::new(
                "sending",
                format!("Handing in what it learned for {}: {so_far}.", step(page, *epoch)),
            ))
        }
        Activity::BeingChecked { epoch, n_left } => {
            let step = step(page, *epoch);
            let text = match n_left {
                0 => format!(
                    "Handed in for {step}. The backbone computes it once more before it counts, as it does with some."
                ),
                n_left => format!(
                    "Handed in for {step}. The backbone computes the first of every newcomer once more before it \
                     counts: {n_left} to go, then this is faster."
                ),
            };
            at_work(Sentence::new("being-checked", text))
        }
        Activity::WaitingForOthers { epoch } => {
            let text =
                format!("Handed in for {}. Waiting for the others to finish theirs.", step(page, *epoch));
            at_work(Sentence::new("waiting-for-others", text + &missed(page)))
        }
        Activity::WaitingForTurn { round, n_trainers, sample_size } => {
            let of_round = format::counted((*sample_size).into(), "device trains", "devices train");
            let all = format::count((*n_trainers).into());
            let text = match n_trainers > sample_size {
                true => format!(
                    "Waiting for its turn: {of_round} a round, drawn by chance from {all}, and this tab is not among those of \
                     {}.",
                    step(page, *round)
                ),
                false => format!(
                    "Waiting to be found: {} is under way with those who were there before this tab.",
                    step(page, *round)
                ),
            };
            at_work(Sentence::new("waiting-for-turn", text))
        }
        Activity::Averaging { epoch } => at_work(Sentence::new(
            "averaging",
            format!("Averaging {} for the others, as only tabs are there.", step(page, *epoch)),
        )),
        Activity::Stopping if page.pause().is_some() => {
            Sentence::new("stopping", "Handing in what is finished, then pausing.")
        }
        Activity::Stopping => Sentence::new("stopping", "Handing in what is finished, then resting."),
        Activity::NotAdmitted { .. } if page.lacks_invitation() => {
            Sentence::new("broken", "This run is by invitation, and this browser has none.")
        }
        Activity::NotAdmitted { reason } => {
            Sentence::new("broken", format!("This tab is not let in: {reason}."))
        }
        Activity::Broken { reason } => Sentence::new("broken", format!("This tab cannot go on: {reason}.")),
    }
}

/// Warning that steps are made without this tab's contributions.
fn missed(page: &PageState) -> String {
    page.contribution.steps_missed().map_or_else(String::new, |n| {
        format!(
            " The last {} were made without it: its work came too late. The others are faster, or their connections are.",
            format::counted(n.into(), "step", "steps")
        )
    })
}

/// The share of the time, where it is below 100 %.
fn share(page: &PageState) -> String {
    match page.limits.settings().duty.percent() {
        100 => String::new(),
        percent => format!(", {percent} % of the time"),
    }
}

/// Steps are counted from one: the parameters of epoch 0 are trained in step 1. The rounds of a run without a server are.
fn step(page: &PageState, epoch: u64) -> String {
    match page.is_sampled() {
        true => format!("round {}", format::count(epoch)),
        false => format!("step {}", format::count(epoch.saturating_add(1))),
    }
}

/// Until the first batch, each stage has a spoken text of its own.
fn joining(page: &PageState, sentence: Sentence) -> Sentence {
    if page.contribution.n_samples_computed > 0 {
        return at_work(sentence);
    }
    let spoken = match sentence.doing {
        "fetching-model" => "Fetching the newest model.",
        "fetching-data" => match page.samples_in_words() {
            "text" => "Fetching text to learn from.",
            "rows" => "Fetching rows to learn from.",
            "ratings" => "Fetching ratings to learn from.",
            _ => "Fetching pictures to learn from.",
        },
        _ => "Warming up.",
    };
    sentence.spoken_as(spoken)
}

/// Once the tab computes, the stages alternate too fast to be read aloud.
fn at_work(sentence: Sentence) -> Sentence {
    Sentence { is_routine: true, ..sentence.spoken_as("This tab is helping to train.") }
}

fn device_in_words(device: DeviceKind) -> &'static str {
    match device {
        DeviceKind::BrowserWebGpu | DeviceKind::NativeWgpu | DeviceKind::NativeCuda => {
            "the graphics processor"
        }
        DeviceKind::BrowserCpu | DeviceKind::NativeCpu => "the processor",
    }
}

/// Note in a tab that follows another one.
pub(crate) fn tabs_line(page: &PageState) -> Option<&'static str> {
    (page.role() == TabRole::Following).then_some(
        "Another tab of this browser has the work. This one shows it, acts on it, and takes over when that one \
         is closed.",
    )
}

/// The transport to the backbone, and why the better ones failed.
pub(crate) fn connection_line(page: &PageState) -> Option<String> {
    let is_lost = matches!(page.activity, Activity::Connecting | Activity::Reconnecting { .. });
    let is_ready = matches!(page.peer, WorkerState::Ready { .. });
    let (transport, failures) = page.connection.as_ref().filter(|_| is_ready && !is_lost)?;
    let better = failures.iter().filter(|(failed, _)| failed < transport);
    let why: Vec<String> = better
        .map(|(failed, reason)| format!("{failed} did not work ({})", format::reason(reason)))
        .collect();
    let why = if why.is_empty() { String::new() } else { format!(", as {}", why.join(" and ")) };
    Some(format!("Connected by {transport}{why}."))
}

/// What the run asks of a visitor to take part, and whether this tab has it; `None` where it asks nothing. What the status
/// sentence says is not said again.
pub(crate) fn invitation_line(page: &PageState) -> Option<&'static str> {
    if page.sign_in_url().is_some() || page.is_in_touch() || !page.is_supported() {
        return None;
    }
    let mode = page.run.as_ref().map(|run| run.access.mode)?;
    match (page.admission(), mode) {
        (Admission::Free, _) => None,
        (Admission::SignIn, _) => {
            Some("This run is for those on its list: you are asked to sign in once you start.")
        }
        (Admission::Invited, _) => Some("You came with an invitation. It is handed in when you start."),
        (Admission::Uninvited { has_key: false }, _) => Some(
            "This run is by invitation. You see here how it learns; to take part and to try its model, open the link that \
             you were sent.",
        ),
        (Admission::Uninvited { has_key: true }, _) => Some(
            "This run is by invitation. If this browser took part before, press Start; if not, open the link that you \
             were sent.",
        ),
        (Admission::Refused, AccessMode::Invitation) if page.lacks_invitation() => Some(
            "You see here how it learns. To take part and to try its model, open the link that you were sent.",
        ),
        (Admission::Refused, AccessMode::Invitation) => {
            Some("Ask who invited you for another invitation, and open its link.")
        }
        (Admission::Refused, AccessMode::Allowlist) => {
            Some("Ask who runs this to put you on the list, then press Start.")
        }
        (Admission::Refused, AccessMode::Open) => None,
    }
}

/// Who may take part, for the line above the title.
pub(crate) fn access_line(page: &PageState) -> &'static str {
    match page.run.as_ref().map(|run| run.access.mode) {
        None | Some(AccessMode::Open) => "Trained by volunteers",
        Some(AccessMode::Invitation) => "Trained by volunteers, by invitation",
        Some(AccessMode::Allowlist) => "Trained by those on its list",
    }
}

/// The device, for the line under the button.
pub(crate) fn device_line(page: &PageState) -> String {
    if !page.is_supported() {
        return "Nothing is computed in this tab.".into();
    }
    match &page.peer {
        WorkerState::Ready { device: DeviceKind::BrowserCpu, .. } => {
            let why = why_the_processor(page);
            match page.n_threads {
                0 | 1 => format!("On the processor{why}."),
                n => format!("On the processor, with {n} threads{why}."),
            }
        }
        WorkerState::Ready { device, device_name } => {
            let via = if *device == DeviceKind::BrowserWebGpu { " through WebGPU" } else { "" };
            let name = if device_name.is_empty() { String::new() } else { format!(": {device_name}") };
            format!("On {}{via}{name}.", device_in_words(*device))
        }
        _ => expected_device(page.device_choice, page.capabilities.web_gpu).into(),
    }
}

fn why_the_processor(page: &PageState) -> &'static str {
    match (&page.device_change, page.device_choice, page.capabilities.web_gpu) {
        (Some(DeviceChange::Lost { .. }), ..) => ", as the graphics processor stopped answering",
        (Some(DeviceChange::Slower), ..) => ", which is faster here than this graphics adapter",
        (None, DeviceChoice::Cpu, _) => "",
        (None, _, WebGpu::Absent) => ", as this browser offers no WebGPU",
        (None, ..) => ", as WebGPU has no graphics processor to offer",
    }
}

fn expected_device(choice: DeviceChoice, web_gpu: WebGpu) -> &'static str {
    match (choice, web_gpu) {
        (DeviceChoice::Cpu, _) => "The processor will do the work.",
        (_, WebGpu::Asking) => "Looking for a graphics processor…",
        (DeviceChoice::WebGpu, WebGpu::Adapter) => "The graphics processor will do the work, through WebGPU.",
        (DeviceChoice::WebGpu, WebGpu::Absent) => "This browser offers no WebGPU.",
        (DeviceChoice::WebGpu, WebGpu::NoAdapter) => "WebGPU has no graphics processor to offer here.",
        (DeviceChoice::Auto, WebGpu::Adapter) => {
            "The graphics processor will do the work, or the processor where that is faster."
        }
        (DeviceChoice::Auto, WebGpu::NoAdapter) => {
            "WebGPU has no graphics processor to offer: the processor will do the work."
        }
        (DeviceChoice::Auto, WebGpu::Absent) => "No WebGPU here: the processor will do the work.",
    }
}

/// The step of the model that answered.
pub(crate) fn which_model(page: &PageState, epoch: u64) -> String {
    let steps = page.steps_in_words(epoch);
    match &page.backbone {
        BackboneStatus::Lost { .. } if !page.contributing => {
            format!("The model after {steps}, as this browser kept it: the backbone cannot be reached.")
        }
        _ => format!("The model after {steps}."),
    }
}

/// `an hour ago`; no model that is compared with is of just now.
pub(crate) fn before(age_seconds: u64) -> String {
    match format::ago(age_seconds) {
        now if now == "just now" => "a moment ago".into(),
        ago => ago,
    }
}

/// The model's answer, and whether it is right where the label is known.
pub(crate) fn verdict(page: &PageState) -> String {
    if let Some((top, probability)) = page.prediction.as_ref().and_then(|found| found.ranking.first()) {
        let name = page.class_name(*top);
        // It never saw a drawing, and is sure of many that it takes for something else.
        let is_drawn = page.question.as_ref().is_some_and(|question| question.picked.is_none());
        let guess = match *probability {
            p if p >= 0.8 && is_drawn => format!("It looks like: {name}."),
            p if p >= 0.8 => format!("That is: {name}."),
            p if p >= 0.4 => format!("Probably: {name}."),
            _ => format!("Hard to say. Perhaps: {name}."),
        };
        return match page.label() {
            None => guess,
            Some(label) if label == *top => format!("{guess} Right."),
            Some(label) => format!("{guess} It is labelled: {}.", page.class_name(label)),
        };
    }
    if let Some(reason) = page.question.as_ref().and_then(|question| question.failure.as_ref()) {
        return format!("{}.", format::reason(reason));
    }
    match (&page.peer, page.is_asking()) {
        (WorkerState::Loading { .. }, true) => "Fetching the model first…".into(),
        (WorkerState::Absent, true) if page.trouble.is_some() => UNANSWERED.into(),
        (_, true) => "Looking…".into(),
        _ if page.is_photo_unreadable => "That file is no picture that this browser can read.".into(),
        _ => ask_first(page).into(),
    }
}

/// What the visitor has to do for an answer.
pub(crate) fn ask_first(page: &PageState) -> &'static str {
    if page.takes_photos() {
        "Choose a photo, or pick a picture."
    } else {
        "Draw something, or pick a picture."
    }
}

#[cfg(test)]
#[path = "sentence/tests.rs"]
mod tests;
