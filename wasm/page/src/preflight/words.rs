//! The preflight in words: one line for everybody, and what is behind it for those who look. Each thing that
//! does not work comes with what to do about it.

use barnraise_messages::{DeviceChoice, Way};
use barnraise_protocol::run::RunDescription;

use super::{Adapter, LITTLE_MEMORY_GIB, Outcome, Preflight, Tried};
use crate::format;
use crate::state::{Page, WebGpu};

/// What holds for the visitor, in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Summary {
    /// `asking`, `ready`, `limited` or `unable`, for the style sheet and for tests.
    pub(crate) state: &'static str,
    /// In words.
    pub(crate) text: String,
}

/// A line behind the summary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// `plain`, `works`, `asking`, `fails`, or `advice` of what to do.
    pub(crate) state: &'static str,
    /// The way that it is about.
    pub(crate) way: Option<Way>,
    /// In words.
    pub(crate) text: String,
}

impl Line {
    fn new(state: &'static str, text: impl Into<String>) -> Self {
        Self { state, way: None, text: text.into() }
    }
}

/// Whether this browser can take part, and with what.
pub(crate) fn summary(page: &Page) -> Summary {
    let of = |state, text: String| Summary { state, text };
    let preflight = &page.preflight;
    if !page.is_supported() {
        return of(
            "unable",
            format!(
                "This browser can only watch: the page did not come over HTTPS. Try https://{}, or ask \
                 whoever runs it for that.",
                preflight.surroundings.host
            ),
        );
    }
    let is_without = matches!(page.capabilities.web_gpu, WebGpu::Absent | WebGpu::NoAdapter);
    if page.device_choice == DeviceChoice::WebGpu && is_without {
        let text = "This browser cannot take part with WebGPU, and the page's address asks for nothing else. \
                    Without device=webgpu in it the processor does the work.";
        return of("unable", text.into());
    }
    let is_asking = preflight.ways().any(|(_, outcome)| *outcome == Outcome::Trying);
    let asks_gpu = page.device_choice != DeviceChoice::Cpu && page.capabilities.web_gpu == WebGpu::Asking;
    if is_asking || asks_gpu {
        return of("asking", "Looking at what this browser can do here…".into());
    }
    let is_left = preflight.ways().any(|(_, outcome)| *outcome == Outcome::Left);
    let ways = match preflight.best_way() {
        Some(best) => works(preflight, best),
        None if is_left => "its ways in were not tried, as the tab was at work first".into(),
        None => {
            let text = "This browser does not get through to the backbone from here. Another network, such as \
                        a phone's hotspot, may let it; what was tried is below.";
            return of("unable", text.into());
        }
    };
    let (is_best, device) = device(page);
    let is_best = is_best && missing(preflight).next().is_none();
    of(if is_best { "ready" } else { "limited" }, format!("This browser can take part: {device}, {ways}."))
}

/// Better ways than the one that works, which do not.
fn missing(preflight: &Preflight) -> impl Iterator<Item = Way> {
    let best = preflight.best_way();
    let fails = |outcome: &Outcome| {
        matches!(outcome, Outcome::Tried(Tried::Silent | Tried::Failed { .. }) | Outcome::NotInBrowser)
    };
    preflight
        .ways()
        .filter(move |(way, outcome)| best.is_some_and(|best| *way < best) && fails(outcome))
        .map(|(way, _)| way)
}

fn works(preflight: &Preflight, best: Way) -> String {
    let missing: Vec<String> = missing(preflight).map(|way| way.to_string()).collect();
    match &missing[..] {
        [] => format!("{best} works"),
        [one] => format!("{best} works, {one} does not"),
        several => format!("{best} works, {} do not", several.join(" and ")),
    }
}

/// What will compute, and whether that is the best that a browser has.
fn device(page: &Page) -> (bool, String) {
    match (page.device_choice, page.capabilities.web_gpu, &page.preflight.adapter) {
        (DeviceChoice::Cpu, ..) => (true, "on its processor".into()),
        (_, WebGpu::Adapter, Some(_)) if lacks(page).is_some() => {
            (false, "on its processor, as the model is too large for its graphics processor".into())
        }
        (_, WebGpu::Adapter, Some(adapter)) if adapter.is_software => {
            (false, "on its processor, as WebGPU is there in software only".into())
        }
        (_, WebGpu::Adapter, adapter) => match adapter.as_ref().map(name) {
            Some(name) if !name.is_empty() => (true, format!("WebGPU ({name})")),
            _ => (true, "WebGPU".into()),
        },
        (_, WebGpu::NoAdapter | WebGpu::Asking, _) => {
            (false, "on its processor, as WebGPU has no graphics processor".into())
        }
        (_, WebGpu::Absent, _) => (false, "on its processor, as it has no WebGPU".into()),
    }
}

/// What people call it.
fn name(adapter: &Adapter) -> String {
    if !adapter.description.is_empty() {
        return adapter.description.clone();
    }
    let vendor = match adapter.vendor.as_str() {
        "nvidia" => "NVIDIA",
        "amd" => "AMD",
        "intel" => "Intel",
        "apple" => "Apple",
        "qualcomm" => "Qualcomm",
        "arm" => "ARM",
        "google" => "Google",
        other => other,
    };
    [vendor, &adapter.architecture]
        .iter()
        .filter(|part| !part.is_empty())
        .copied()
        .collect::<Vec<_>>()
        .join(" ")
}

/// The browser and the system that it runs on.
pub(crate) fn browser(page: &Page) -> Vec<Line> {
    vec![Line::new("plain", format!("{}.", page.preflight.surroundings.browser.words()))]
}

/// The adapter and its limits, or what it is good for that there is none and how to get one.
pub(crate) fn graphics(page: &Page) -> Vec<Line> {
    let web_gpu = page.capabilities.web_gpu;
    let advice = || Line::new("advice", page.preflight.surroundings.browser.web_gpu_hint(web_gpu));
    let slower = "The processor does the work, more slowly.";
    match (web_gpu, &page.preflight.adapter) {
        (WebGpu::Asking, _) => vec![Line::new("asking", "Asking for a graphics processor…")],
        (WebGpu::Absent, _) if !page.is_supported() => {
            vec![Line::new("fails", "Browsers offer WebGPU to pages that came over HTTPS only.")]
        }
        (WebGpu::Absent, _) => vec![Line::new("fails", format!("No WebGPU. {slower}")), advice()],
        (WebGpu::NoAdapter, _) => {
            vec![Line::new("fails", format!("WebGPU has no graphics processor to offer. {slower}")), advice()]
        }
        (WebGpu::Adapter, Some(adapter)) if lacks(page).is_some() => {
            let text = lacks(page).unwrap_or_default();
            vec![Line::new("fails", text), limits(adapter)]
        }
        (WebGpu::Adapter, Some(adapter)) if adapter.is_software => {
            let what = name(adapter);
            let text =
                format!("WebGPU in software ({what}): the tab finds out whether the processor is faster.");
            vec![Line::new("fails", text), limits(adapter), advice()]
        }
        (WebGpu::Adapter, Some(adapter)) => match name(adapter) {
            unnamed if unnamed.is_empty() => vec![Line::new("works", "WebGPU works."), limits(adapter)],
            name => vec![Line::new("works", format!("WebGPU works: {name}.")), limits(adapter)],
        },
        (WebGpu::Adapter, None) => vec![Line::new("works", "WebGPU works.")],
    }
}

/// That the model is too large for the graphics processor, where it is.
fn lacks(page: &Page) -> Option<String> {
    // Whoever asks for nothing but WebGPU gets it, and nothing else.
    let run = page.run.as_ref().filter(|_| page.device_choice != DeviceChoice::WebGpu)?;
    let (wanted, granted) = page.preflight.lacks(run)?;
    Some(format!(
        "This model wants {} at once, more than the {} that this graphics processor grants. The processor does the \
         work, more slowly.",
        format::bytes(wanted),
        format::bytes(granted)
    ))
}

fn limits(adapter: &Adapter) -> Line {
    let half = if adapter.has_f16 { "with" } else { "without" };
    let (buffer, binding) =
        (format::bytes(adapter.buffer_bytes_max), format::bytes(adapter.binding_bytes_max));
    let text = format!("Buffers up to {buffer}, {binding} of one at a time; {half} half precision.");
    Line::new("plain", text)
}

/// Threads and memory, as far as the browser tells.
pub(crate) fn processor(page: &Page) -> Vec<Line> {
    let surroundings = &page.preflight.surroundings;
    let threads = surroundings.n_processors.map(|n| format::counted(n.into(), "thread", "threads"));
    // Rounded by the browser, and never more than 8.
    let memory = surroundings.memory_gib.map(|gib| match gib {
        gib if gib >= 8.0 => "8 GB of memory or more".to_owned(),
        gib => format!("about {gib} GB of memory"),
    });
    let told: Vec<String> = threads.into_iter().chain(memory).collect();
    let text = if told.is_empty() { "This browser does not tell".into() } else { told.join(", ") };
    let mut lines = vec![Line::new("plain", format!("{text}."))];
    if surroundings.memory_gib.is_some_and(|gib| gib <= LITTLE_MEMORY_GIB) {
        let text = "That is little: close other tabs and programs. It works in small pieces, and in smaller ones should \
                    the memory run out.";
        lines.push(Line::new("advice", text));
    }
    lines
}

/// Each way, whether it works, and what to do where it does not.
pub(crate) fn ways(page: &Page) -> Vec<Line> {
    let preflight = &page.preflight;
    let mut lines: Vec<Line> = preflight.ways().map(|(way, outcome)| way_line(page, way, outcome)).collect();
    let is_lost = |outcome: &Outcome| matches!(outcome, Outcome::Tried(Tried::Silent | Tried::Failed { .. }));
    let lost: Vec<Way> =
        preflight.ways().filter(|(_, outcome)| is_lost(outcome)).map(|(way, _)| way).collect();
    let over_udp: Vec<String> =
        lost.iter().filter(|way| **way != Way::WebSocket).map(|way| way.to_string()).collect();
    let need = match &over_udp[..] {
        [] => None,
        _ if preflight.best_way() == Some(Way::WebTransport) => None,
        [one] => Some(format!("{one} needs")),
        several => Some(format!("{} need", several.join(" and "))),
    };
    if let Some(need) = need {
        let then = preflight.best_way().map(|best| format!(" Until then {best} does, a little slower."));
        let text = format!(
            "{need} UDP, which company and guest networks often block; another network, such as a phone's \
             hotspot, lets it through.{}",
            then.unwrap_or_default()
        );
        lines.push(Line::new("advice", text));
    } else if lost.contains(&Way::WebSocket) && preflight.best_way().is_none() {
        let text = "A firewall may be in between, or the backbone away: try another network, or later.";
        lines.push(Line::new("advice", text));
    }
    lines
}

fn way_line(page: &Page, way: Way, outcome: &Outcome) -> Line {
    let (state, text) = match outcome {
        Outcome::Trying => ("asking", format!("{way}: trying it…")),
        Outcome::Tried(Tried::Works { after_ms }) => ("works", format!("{way} works ({after_ms} ms).")),
        Outcome::Tried(Tried::Silent) => ("fails", format!("{way} does not work: nothing answered.")),
        Outcome::Tried(Tried::Failed { reason }) if reason.is_empty() => {
            ("fails", format!("{way} does not work: no connection."))
        }
        Outcome::Tried(Tried::Failed { reason }) => {
            ("fails", format!("{way} does not work: {}.", reason.trim_end_matches('.')))
        }
        Outcome::NotInBrowser if way == Way::WebTransport && !page.is_supported() => {
            ("fails", format!("{way} is for pages that came over HTTPS only."))
        }
        Outcome::NotInBrowser => ("fails", format!("{way} is not in this browser; a newer one has it.")),
        Outcome::NotOffered => ("plain", format!("{way} is not offered by the backbone.")),
        Outcome::NotEncrypted => {
            ("plain", format!("{way} is offered without encryption only, which this page may not use."))
        }
        Outcome::Left => ("plain", format!("{way} was not tried, as the tab was at work first.")),
    };
    Line { state, way: Some(way), text }
}

/// What taking part costs in data.
pub(crate) fn data(page: &Page) -> Vec<Line> {
    let Some(run) = &page.run else {
        return vec![Line::new("asking", "Asking what is trained here…")];
    };
    let cost = Cost::of(run);
    let program = match page.preflight.program_bytes {
        Some(n_bytes) => format!("{} for the program", format::bytes(n_bytes)),
        None => "The program".into(),
    };
    let (model, gallery) = (format::bytes(cost.model_bytes), format::bytes(cost.gallery_bytes));
    let begin = match page.has_nothing_to_try() {
        true => format!("{program} and {model} for the model, to begin with."),
        false => {
            format!("{program}, {model} for the model and {gallery} for pictures to look at, to begin with.")
        }
    };
    let samples = if page.is_of_text() { "Text" } else { "Pictures" };
    let parts = format!(
        "{samples} to learn from come in {} of about {}, {} in all, and are kept for the next time.",
        format::counted(cost.n_shards, "part", "parts"),
        format::bytes(cost.shard_bytes),
        format::bytes(cost.data_bytes),
    );
    let update =
        format!("Then up to {} up and {model} down with each step.", format::bytes(cost.update_bytes));
    let idle = "Nothing of it is fetched before you start.";
    [begin, parts, update, idle.into()].into_iter().map(|text| Line::new("plain", text)).collect()
}

/// What a run costs a contributor, from its description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cost {
    model_bytes: u64,
    update_bytes: u64,
    gallery_bytes: u64,
    n_shards: u64,
    /// Of one, on average.
    shard_bytes: u64,
    data_bytes: u64,
}

impl Cost {
    fn of(run: &RunDescription) -> Self {
        let n_values = usize::try_from(run.n_parameters).unwrap_or(usize::MAX);
        let shards = &run.manifest.shards;
        let data_bytes = shards.iter().map(|shard| u64::from(shard.n_bytes)).sum::<u64>();
        let n_shards = shards.len() as u64;
        Self {
            model_bytes: run.state_codec.encoded_len(n_values) as u64,
            // Once a warm-up is over.
            update_bytes: *run.gradient_codec.encoded_len_at(n_values, u64::MAX).end() as u64,
            gallery_bytes: run.manifest.gallery.n_bytes.into(),
            n_shards,
            shard_bytes: data_bytes / n_shards.max(1),
            data_bytes,
        }
    }
}
