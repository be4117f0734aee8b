//! Texts of the preflight: a summary line, and the details behind it. Each problem comes with advice. Pure.

use barnraise_messages::{Activity, DeviceChoice, TransportKind};

use crate::cost::HourCost;
use crate::format;
use crate::preflight::{Adapter, LITTLE_MEMORY_GIB, Preflight, ProbeResult, TransportOutcome, WebGpu};
use crate::state::PageState;

/// Summary line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Summary {
    /// `asking`, `ready`, `limited` or `unable`, for the style sheet and for tests.
    pub(crate) state: &'static str,
    /// Text.
    pub(crate) text: String,
}

/// A line of the details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReportLine {
    /// `plain`, `works`, `asking`, `fails` or `advice`.
    pub(crate) state: &'static str,
    /// The transport that it is about.
    pub(crate) transport: Option<TransportKind>,
    /// Text.
    pub(crate) text: String,
}

impl ReportLine {
    fn new(state: &'static str, text: impl Into<String>) -> Self {
        Self { state, transport: None, text: text.into() }
    }
}

/// Whether this browser can take part, and with which device and transport.
pub(crate) fn summary(page: &PageState) -> Summary {
    let of = |state, text: String| Summary { state, text };
    let preflight = &page.preflight;
    if !page.is_supported() {
        return of(
            "unable",
            format!(
                "Over HTTPS this browser could take part. Try https://{}, or ask its operator for that.",
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
    let is_asking = preflight.transports().any(|(_, outcome)| *outcome == TransportOutcome::Trying);
    let asks_gpu = page.device_choice != DeviceChoice::Cpu && page.capabilities.web_gpu == WebGpu::Asking;
    if is_asking || asks_gpu {
        return of("asking", "Looking at what this browser can do here…".into());
    }
    let is_left = preflight.transports().any(|(_, outcome)| *outcome == TransportOutcome::Left);
    let connection = match preflight.best_transport() {
        Some(best) => works(preflight, best),
        None if is_left => "its connections were not tried, as the tab was at work first".into(),
        None => {
            let text = "This browser does not get through to the backbone from here. Another network, such as \
                        a phone's hotspot, may let it; what was tried is below.";
            return of("unable", text.into());
        }
    };
    let (is_best, device) = device(page);
    let is_best = is_best && missing(preflight).next().is_none();
    of(
        if is_best { "ready" } else { "limited" },
        format!(
            "This browser {} take part: {device}, {connection}.",
            if page.lacks_invitation() { "could" } else { "can" }
        ),
    )
}

/// Better transports than the one that works, which failed or are missing.
fn missing(preflight: &Preflight) -> impl Iterator<Item = TransportKind> {
    let best = preflight.best_transport();
    let fails = |outcome: &TransportOutcome| {
        matches!(
            outcome,
            TransportOutcome::Tried(ProbeResult::Silent | ProbeResult::Failed { .. })
                | TransportOutcome::NotInBrowser
        )
    };
    preflight
        .transports()
        .filter(move |(transport, outcome)| best.is_some_and(|best| *transport < best) && fails(outcome))
        .map(|(transport, _)| transport)
}

fn works(preflight: &Preflight, best: TransportKind) -> String {
    let missing: Vec<String> = missing(preflight).map(|transport| transport.to_string()).collect();
    match &missing[..] {
        [] => format!("{best} works"),
        [one] => format!("{best} works, {one} does not"),
        several => format!("{best} works, {} do not", several.join(" and ")),
    }
}

/// The device that will compute, and whether it is the best choice.
fn device(page: &PageState) -> (bool, String) {
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

/// Display name of an adapter.
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
pub(crate) fn browser(page: &PageState) -> Vec<ReportLine> {
    let surroundings = &page.preflight.surroundings;
    let mut lines = vec![ReportLine::new("plain", format!("{}.", surroundings.browser.words()))];
    if surroundings.is_storage_blocked {
        let text = "It stores nothing for this page: name, settings and receipts end with this tab.";
        lines.push(ReportLine::new("advice", text));
    }
    lines
}

/// The adapter and its limits, or why there is none and how to get one.
pub(crate) fn graphics(page: &PageState) -> Vec<ReportLine> {
    let web_gpu = page.capabilities.web_gpu;
    let advice = || ReportLine::new("advice", page.preflight.surroundings.browser.web_gpu_hint(web_gpu));
    let slower = "The processor does the work, more slowly.";
    match (web_gpu, &page.preflight.adapter) {
        (WebGpu::Asking, _) => vec![ReportLine::new("asking", "Asking for a graphics processor…")],
        (WebGpu::Absent, _) if !page.is_supported() => {
            vec![ReportLine::new("fails", "Browsers offer WebGPU to pages that came over HTTPS only.")]
        }
        (WebGpu::Absent, _) => vec![ReportLine::new("fails", format!("No WebGPU. {slower}")), advice()],
        (WebGpu::NoAdapter, _) => {
            vec![
                ReportLine::new("fails", format!("WebGPU has no graphics processor to offer. {slower}")),
                advice(),
            ]
        }
        (WebGpu::Adapter, Some(adapter)) if lacks(page).is_some() => {
            let text = lacks(page).unwrap_or_default();
            vec![ReportLine::new("fails", text), limits(adapter)]
        }
        (WebGpu::Adapter, Some(adapter)) if adapter.is_software => {
            let what = name(adapter);
            let text =
                format!("WebGPU in software ({what}): the tab finds out whether the processor is faster.");
            vec![ReportLine::new("fails", text), limits(adapter), advice()]
        }
        (WebGpu::Adapter, Some(adapter)) => match name(adapter) {
            unnamed if unnamed.is_empty() => vec![ReportLine::new("works", "WebGPU works."), limits(adapter)],
            name => vec![ReportLine::new("works", format!("WebGPU works: {name}.")), limits(adapter)],
        },
        (WebGpu::Adapter, None) => vec![ReportLine::new("works", "WebGPU works.")],
    }
}

/// Set if the model is too large for the graphics processor.
fn lacks(page: &PageState) -> Option<String> {
    // A visitor who asks for WebGPU only gets it in any case.
    if page.device_choice == DeviceChoice::WebGpu {
        return None;
    }
    let (wanted, granted) = page.preflight.lacks(page.n_parameters)?;
    Some(format!(
        "This model wants {} at once, more than the {} that this graphics processor grants. The processor does the \
         work, more slowly.",
        format::bytes(wanted),
        format::bytes(granted)
    ))
}

fn limits(adapter: &Adapter) -> ReportLine {
    let half = if adapter.has_f16 { "with" } else { "without" };
    let (buffer, binding) =
        (format::bytes(adapter.buffer_bytes_max), format::bytes(adapter.binding_bytes_max));
    let text = format!("Buffers up to {buffer}, {binding} of one at a time; {half} half precision.");
    ReportLine::new("plain", text)
}

/// Threads and memory, as far as the browser tells.
pub(crate) fn processor(page: &PageState) -> Vec<ReportLine> {
    let surroundings = &page.preflight.surroundings;
    let threads = surroundings.n_processors.map(|n| format::counted(n.into(), "thread", "threads"));
    // Rounded by the browser, and never more than 8.
    let memory = surroundings.memory_gib.map(|gib| match gib {
        gib if gib >= 8.0 => "8 GB of memory or more".to_owned(),
        gib => format!("about {gib} GB of memory"),
    });
    let told: Vec<String> = threads.into_iter().chain(memory).collect();
    let text = if told.is_empty() { "This browser does not tell".into() } else { told.join(", ") };
    let mut lines = vec![ReportLine::new("plain", format!("{text}."))];
    if surroundings.memory_gib.is_some_and(|gib| gib <= LITTLE_MEMORY_GIB) {
        let text = "That is little: close other tabs and programs. It works in small pieces, and in smaller ones should \
                    the memory run out.";
        lines.push(ReportLine::new("advice", text));
    }
    lines
}

/// Each transport, whether it works, and advice; and why the connection was lost.
pub(crate) fn transports(page: &PageState) -> Vec<ReportLine> {
    let preflight = &page.preflight;
    let mut lines: Vec<ReportLine> =
        preflight.transports().map(|(transport, outcome)| transport_line(page, transport, outcome)).collect();
    if let Activity::Reconnecting { reason, .. } = &page.activity {
        let text = format!("The connection was lost: {}.", format::reason(&reason.to_string()));
        lines.push(ReportLine::new("fails", text));
    }
    let is_lost = |outcome: &TransportOutcome| {
        matches!(outcome, TransportOutcome::Tried(ProbeResult::Silent | ProbeResult::Failed { .. }))
    };
    let lost: Vec<TransportKind> = preflight
        .transports()
        .filter(|(_, outcome)| is_lost(outcome))
        .map(|(transport, _)| transport)
        .collect();
    let over_udp: Vec<String> = lost
        .iter()
        .filter(|transport| **transport != TransportKind::WebSocket)
        .map(|transport| transport.to_string())
        .collect();
    let need = match &over_udp[..] {
        [] => None,
        _ if preflight.best_transport() == Some(TransportKind::WebTransport) => None,
        [one] => Some(format!("{one} needs")),
        several => Some(format!("{} need", several.join(" and "))),
    };
    if let Some(need) = need {
        let then =
            preflight.best_transport().map(|best| format!(" Until then {best} does, a little slower."));
        let text = format!(
            "{need} UDP, which company and guest networks often block; another network, such as a phone's \
             hotspot, lets it through.{}",
            then.unwrap_or_default()
        );
        lines.push(ReportLine::new("advice", text));
    } else if lost.contains(&TransportKind::WebSocket) && preflight.best_transport().is_none() {
        let text = "A firewall may be in between, or the backbone away: try another network, or later.";
        lines.push(ReportLine::new("advice", text));
    }
    lines
}

fn transport_line(page: &PageState, transport: TransportKind, outcome: &TransportOutcome) -> ReportLine {
    let (state, text) = match outcome {
        TransportOutcome::Trying => ("asking", format!("{transport}: trying it…")),
        TransportOutcome::Tried(ProbeResult::Works { after_ms }) => {
            ("works", format!("{transport} works ({after_ms} ms)."))
        }
        TransportOutcome::Tried(ProbeResult::Silent) => {
            ("fails", format!("{transport} does not work: nothing answered."))
        }
        TransportOutcome::Tried(ProbeResult::Failed { reason }) if reason.is_empty() => {
            ("fails", format!("{transport} does not work: no connection."))
        }
        TransportOutcome::Tried(ProbeResult::Failed { reason }) => {
            ("fails", format!("{transport} does not work: {}.", reason.trim_end_matches('.')))
        }
        TransportOutcome::NotInBrowser
            if transport == TransportKind::WebTransport && !page.is_supported() =>
        {
            ("fails", format!("{transport} is for pages that came over HTTPS only."))
        }
        TransportOutcome::NotInBrowser => {
            ("fails", format!("{transport} is not in this browser; a newer one has it."))
        }
        TransportOutcome::NotOffered => ("plain", format!("{transport} is not offered by the backbone.")),
        TransportOutcome::NotEncrypted => {
            ("plain", format!("{transport} is offered without encryption only, which this page may not use."))
        }
        TransportOutcome::Left => {
            ("plain", format!("{transport} was not tried, as the tab was at work first."))
        }
    };
    ReportLine { state, transport: Some(transport), text }
}

/// Data that contributing needs.
pub(crate) fn data(page: &PageState) -> Vec<ReportLine> {
    let Some(cost) = page.run_cost() else {
        return vec![ReportLine::new("asking", "Asking what is trained here…")];
    };
    let program = match page.preflight.program_bytes {
        Some(n_bytes) => format!("{} for the program", format::bytes(n_bytes)),
        None => "The program".into(),
    };
    let model = format::bytes(cost.model_bytes.saturating_add(cost.frozen_bytes));
    let gallery = format::bytes(cost.gallery_bytes);
    let begin = match page.has_nothing_to_try() {
        true => format!("{program} and {model} for the model, to begin with."),
        false => {
            format!("{program}, {model} for the model and {gallery} for pictures to look at, to begin with.")
        }
    };
    let samples = match page.samples_in_words() {
        "text" => "Text",
        "rows" => "Rows",
        "ratings" => "Ratings",
        _ => "Pictures",
    };
    let parts = match cost.streamed {
        Some(stream) => format!(
            "{samples} to learn from come in parts of about {}, others all the time, and are not kept.",
            format::bytes(stream.shard_bytes())
        ),
        None => format!(
            "{samples} to learn from come in {} of about {}, {} in all, and are kept for the next time.",
            format::counted(cost.n_shards, "part", "parts"),
            format::bytes(cost.shard_bytes),
            format::bytes(cost.data_bytes),
        ),
    };
    let (up, down) = (format::bytes(cost.update_bytes), format::bytes(cost.models_bytes()));
    let step = match page.sampled() {
        Some(scheme) if scheme.exchange.is_among_neighbors() => "round",
        Some(_) => "round that this tab is drawn for",
        None => "step",
    };
    let update = format!("Then up to {up} up and {down} down with each {step}.");
    let idle = "Nothing of it is fetched before you start.";
    [begin, parts, update, hour(page), idle.into()]
        .into_iter()
        .map(|text| ReportLine::new("plain", text))
        .collect()
}

/// What that is by the hour, and how it is known.
fn hour(page: &PageState) -> String {
    match page.hour_cost() {
        Some(HourCost::Measured(bytes)) => {
            format!("In this tab that is about {} an hour.", format::bytes(bytes))
        }
        Some(HourCost::OfOthers(bytes)) => {
            format!("For the contributors so far that was about {} an hour.", format::bytes(bytes))
        }
        Some(HourCost::Estimated(bytes)) => {
            format!("At the pace of the run now, that is roughly {} an hour.", format::rough_bytes(bytes))
        }
        None => "How much that is by the hour shows once somebody contributes.".into(),
    }
}

#[cfg(test)]
#[path = "report/tests.rs"]
mod tests;
