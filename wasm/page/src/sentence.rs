//! The sentence that always says what the tab is doing or why it waits. Pure.

use barnraise_messages::{Activity, DeviceChange, DeviceChoice};
use barnraise_protocol::contribute::DeviceKind;

use crate::conduct::{Reason, words};
use crate::format;
use crate::state::{Backbone, Page, Peer, Role, WebGpu, is_of_memory, is_of_version};

/// To a question whose worker is gone for good; asking again loads another one.
pub(crate) const UNANSWERED: &str = "No answer: the training program stopped. Ask once more to load it anew.";

/// What the page says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sentence {
    /// Which of the sentences it is, for tests and for the style sheet.
    pub(crate) doing: &'static str,
    /// In words.
    pub(crate) text: String,
    /// The same in words that change seldom, for a screen reader to say aloud.
    pub(crate) spoken: String,
    /// One of those that follow each other in every step.
    pub(crate) is_routine: bool,
}

impl Sentence {
    fn new(doing: &'static str, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { doing, spoken: text.clone(), text, is_routine: false }
    }

    /// A sentence whose numbers change too often to be read aloud.
    fn spoken_as(self, spoken: impl Into<String>) -> Self {
        Self { spoken: spoken.into(), ..self }
    }
}

/// What the tab is doing now.
pub(crate) fn sentence(page: &Page) -> Sentence {
    if let Some(sentence) = unsupported(page).or_else(|| trouble(page)) {
        return sentence;
    }
    match (&page.peer, &page.backbone) {
        (Peer::Loading { bytes: 0, .. }, _) => Sentence::new("loading", "Fetching the training program…"),
        (Peer::Loading { bytes, bytes_total: Some(total) }, _) if bytes >= total => {
            Sentence::new("preparing", "Getting the training program ready…")
        }
        (Peer::Loading { bytes, bytes_total }, _) => {
            let so_far = format::transfer(*bytes, *bytes_total);
            Sentence::new("loading", format!("Fetching the training program: {so_far}."))
                .spoken_as("Fetching the training program…")
        }
        // What is under way is handed in first.
        (Peer::Absent, _) if page.pause().is_some() => paused(page),
        (Peer::Ready { .. }, _) if page.pause().is_some() && page.activity == Activity::Idle => paused(page),
        (Peer::Ready { device, .. }, _) if page.contributing || page.activity != Activity::Idle => {
            activity(page, *device)
        }
        (_, Backbone::Asking) => Sentence::new("asking", "Asking what is being trained here…"),
        (_, Backbone::Lost { .. }) if page.endurance.is_offline => {
            let then = if page.contributing { " This tab then goes on by itself." } else { "" };
            Sentence::new("unreachable", format!("This device has no network. Waiting for it.{then}"))
        }
        (_, Backbone::Lost { reason, retry_in_ms }) => {
            let wait = format::wait(*retry_in_ms);
            let then = if page.contributing { " This tab then begins by itself." } else { "" };
            Sentence::new(
                "unreachable",
                format!("The backbone cannot be reached ({reason}). Trying again {wait}.{then}"),
            )
            .spoken_as("The backbone cannot be reached. Trying again.")
        }
        // The tab that has the work was asked, and has not answered yet.
        (_, Backbone::Live) if page.contributing => Sentence::new("idle", "About to begin…"),
        (_, Backbone::Live) => resting(page),
    }
}

fn unsupported(page: &Page) -> Option<Sentence> {
    let text = "This page did not come over HTTPS, so the browser will not let it compute or connect. \
        You can still watch.";
    (!page.capabilities.secure).then(|| Sentence::new("unsupported", text))
}

fn trouble(page: &Page) -> Option<Sentence> {
    if let Some(reason) = page.endurance.reviving.as_ref() {
        let text = format!("The training program stopped ({reason}). It is started again in a moment.");
        let spoken = "The training program stopped. It is started again in a moment.";
        return Some(Sentence::new("reviving", text).spoken_as(spoken));
    }
    // Start would ask for what is gone.
    if let Some(reason) = page.trouble.as_ref().filter(|reason| is_of_version(reason)) {
        return Some(Sentence::new("broken", format!("The training program cannot be had: {reason}.")));
    }
    let reason = page.trouble.as_ref()?;
    let advice = match (is_of_memory(reason), page.pass_samples_max()) {
        (true, None) => "This device has little memory: close other tabs, then Start loads it anew.".into(),
        (true, Some(n)) => format!(
            "This device has little memory: close other tabs, then Start loads it anew, for {} at a time.",
            format::counted(n.into(), "sample", "samples")
        ),
        (false, _) => "Start loads it anew.".to_owned(),
    };
    Some(Sentence::new("broken", format!("The training program stopped: {reason}. {advice}")))
}

/// Why, and what makes it go on.
fn paused(page: &Page) -> Sentence {
    let text = match page.pause() {
        // Whoever reads this has a tab of it in front: another one.
        Some(Reason::Hidden) if page.role() == Role::Following => {
            "Paused: the tab that has the work is not in front. It goes on by itself when it is.".into()
        }
        Some(Reason::Elsewhere) => words::elsewhere(page.elsewhere()),
        reason => reason.map(words::pause).unwrap_or_default(),
    };
    Sentence::new("paused", text)
}

/// Of the whole run, by its operator: what that means for this tab.
fn halted(reason: &str, then: &str) -> Sentence {
    let reason = reason.trim_end_matches('.');
    Sentence::new("halted", format!("This run is paused: {reason}. {then}"))
}

fn resting(page: &Page) -> Sentence {
    if let Some(reason) = &page.operator_pause {
        let then =
            "No steps are made until it goes on. A tab that starts now waits, and begins by itself then.";
        return halted(reason, then);
    }
    let text = match page.contribution.n_samples_accepted {
        0 => "Resting. Start, and this tab lends its hands to the next step.".into(),
        n => format!("Resting. This tab gave {}. Thank you.", format::counted(n, "sample", "samples")),
    };
    Sentence::new("idle", text)
}

fn activity(page: &Page, device: DeviceKind) -> Sentence {
    if let (Activity::WaitingForOthers { .. }, Some(reason)) = (&page.activity, &page.operator_pause) {
        return halted(reason, "What this tab has handed in counts. It waits, and goes on by itself.");
    }
    match &page.activity {
        Activity::Idle => Sentence::new("idle", "About to begin…"),
        Activity::Connecting => Sentence::new("connecting", "Connecting to the backbone…"),
        Activity::SigningIn { .. } => {
            Sentence::new("signing-in", "This run is for those on its list: sign in, and this goes on.")
        }
        Activity::Reconnecting { retry_in_ms, reason } => {
            let wait = format::wait(*retry_in_ms);
            Sentence::new(
                "reconnecting",
                format!("Lost touch with the backbone ({}). Trying again {wait}.", format::reason(reason)),
            )
            .spoken_as("Lost touch with the backbone. Trying again.")
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
            let text =
                format!("Learning from {samples} for step {} on {device}{}.", step(*epoch), share(page));
            at_work(Sentence::new("training", text + &missed(page)))
        }
        Activity::Sending { epoch, bytes, bytes_total } => {
            let so_far = format::transfer(*bytes, Some(*bytes_total));
            at_work(Sentence::new(
                "sending",
                format!("Handing in what it learned for step {}: {so_far}.", step(*epoch)),
            ))
        }
        Activity::BeingChecked { epoch, n_left } => {
            let step = step(*epoch);
            let text = match n_left {
                0 => format!(
                    "Handed in for step {step}. The backbone computes it once more before it counts, as it does with some."
                ),
                n_left => format!(
                    "Handed in for step {step}. The backbone computes the first of every newcomer once more before it \
                     counts: {n_left} to go, then this is faster."
                ),
            };
            at_work(Sentence::new("being-checked", text))
        }
        Activity::WaitingForOthers { epoch } => {
            let text =
                format!("Handed in for step {}. Waiting for the others to finish theirs.", step(*epoch));
            at_work(Sentence::new("waiting-for-others", text + &missed(page)))
        }
        Activity::Stopping if page.pause().is_some() => {
            Sentence::new("stopping", "Handing in what is finished, then pausing.")
        }
        Activity::Stopping => Sentence::new("stopping", "Handing in what is finished, then resting."),
        Activity::Broken { reason } => Sentence::new("broken", format!("This tab cannot go on: {reason}.")),
    }
}

/// That the run goes on without this tab, where it does.
fn missed(page: &Page) -> String {
    page.contribution.steps_missed().map_or_else(String::new, |n| {
        format!(
            " The last {} were made without it: its work came too late. The others are faster, or their connections are.",
            format::counted(n.into(), "step", "steps")
        )
    })
}

/// Of the time, where it does not compute all of it.
fn share(page: &Page) -> String {
    match page.conductor.settings().duty.percent() {
        100 => String::new(),
        percent => format!(", {percent} % of the time"),
    }
}

/// Steps are counted from one: the parameters of epoch 0 are trained in step 1.
fn step(epoch: u64) -> String {
    format::count(epoch.saturating_add(1))
}

/// Until the first batch, each stage is worth a word.
fn joining(page: &Page, sentence: Sentence) -> Sentence {
    if page.contribution.n_samples_computed > 0 {
        return at_work(sentence);
    }
    let spoken = match sentence.doing {
        "fetching-model" => "Fetching the newest model.",
        "fetching-data" if page.is_of_text() => "Fetching text to learn from.",
        "fetching-data" => "Fetching pictures to learn from.",
        _ => "Warming up.",
    };
    sentence.spoken_as(spoken)
}

/// Once at work the stages follow each other faster than anyone wants to hear.
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

/// Where the work is done, where that is not here.
pub(crate) fn tabs_line(page: &Page) -> Option<&'static str> {
    (page.role() == Role::Following).then_some(
        "Another tab of this browser has the work. This one shows it, acts on it, and takes over when that one \
         is closed.",
    )
}

/// How the backbone is reached, and why not by a better way.
pub(crate) fn connection_line(page: &Page) -> Option<String> {
    let (way, failures) = page.way.as_ref().filter(|_| matches!(page.peer, Peer::Ready { .. }))?;
    let better = failures.iter().filter(|(failed, _)| failed < way);
    let why: Vec<String> = better
        .map(|(failed, reason)| format!("{failed} did not work ({})", format::reason(reason)))
        .collect();
    let why = if why.is_empty() { String::new() } else { format!(", as {}", why.join(" and ")) };
    Some(format!("Connected by {way}{why}."))
}

/// What computes, for the line under the button.
pub(crate) fn device_line(page: &Page) -> String {
    if !page.is_supported() {
        return "Nothing is computed in this tab.".into();
    }
    match &page.peer {
        Peer::Ready { device: DeviceKind::BrowserCpu, .. } => {
            format!("On the processor{}.", why_the_processor(page))
        }
        Peer::Ready { device, device_name } => {
            let via = if *device == DeviceKind::BrowserWebGpu { " through WebGPU" } else { "" };
            let name = if device_name.is_empty() { String::new() } else { format!(": {device_name}") };
            format!("On {}{via}{name}.", device_in_words(*device))
        }
        _ => expected_device(page.device_choice, page.capabilities.web_gpu).into(),
    }
}

fn why_the_processor(page: &Page) -> &'static str {
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

/// Of which step the model is that answered.
pub(crate) fn which_model(page: &Page, epoch: u64) -> String {
    let steps = format::counted(epoch, "step", "steps");
    match &page.backbone {
        Backbone::Lost { .. } if !page.contributing => {
            format!("The model after {steps}, as this browser kept it: the backbone cannot be reached.")
        }
        _ => format!("The model after {steps}."),
    }
}

/// What the model said, and whether it was right where that is known.
pub(crate) fn verdict(page: &Page) -> String {
    if let Some((top, probability)) = page.prediction.as_ref().and_then(|found| found.ranking.first()) {
        let name = page.class_name(*top);
        let guess = match *probability {
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
    match (&page.peer, page.is_asking()) {
        (Peer::Loading { .. }, true) => "Fetching the model first…".into(),
        (Peer::Absent, true) if page.trouble.is_some() => UNANSWERED.into(),
        (_, true) => "Looking…".into(),
        _ => "Draw something, or pick a picture.".into(),
    }
}

#[cfg(test)]
#[path = "sentence/tests.rs"]
mod tests;
