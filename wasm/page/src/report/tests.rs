#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_messages::PageToPeer;
use barnraise_protocol::dataset::DataStream;

use super::*;
use crate::fixture;
use crate::preflight::{ADDRESSES_PER_TRANSPORT_MAX, BrowserIdentity, Surroundings, TRANSPORTS};
use crate::state::{PageAction, PageEvent};

const SESSION: &str = "/ip4/192.0.2.1/udp/4001/quic-v1/webtransport/p2p/12D3";
const CALL: &str =
    "/ip4/192.0.2.1/udp/4003/webrtc-direct/certhash/uEiAHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBw/p2p/12D3";
const SOCKET: &str = "/ip4/192.0.2.1/tcp/4002/ws/p2p/12D3";
const SECURE_SOCKET: &str = "/dns/run.example/tcp/443/tls/ws/p2p/12D3";

fn surroundings() -> Surroundings {
    Surroundings {
        browser: BrowserIdentity::of("(X11; Linux x86_64) Chrome/156.0"),
        host: "run.example".into(),
        transports: TRANSPORTS.into(),
        ..Surroundings::default()
    }
}

fn page_within(surroundings: Surroundings) -> PageState {
    fixture::page().within(surroundings)
}

fn page() -> PageState {
    page_within(surroundings())
}

/// The backbone's addresses arrive; returns the transports that are tried.
fn arrives(page: &mut PageState, addresses: &[&str]) -> Vec<TransportKind> {
    let mut status = fixture::status();
    status.addresses = addresses.iter().copied().map(String::from).collect();
    let actions = page.on_event(0.0, PageEvent::RunArrived(Box::new(status)));
    let attempts = actions.into_iter().find_map(|action| match action {
        PageAction::ProbeTransports(attempts) => Some(attempts),
        _ => None,
    });
    attempts.unwrap_or_default().into_iter().map(|(transport, _)| transport).collect()
}

fn tried(page: &mut PageState, transport: TransportKind, tried: ProbeResult) {
    assert_eq!(page.on_event(1.0, PageEvent::TransportProbed(transport, tried)), []);
}

fn works() -> ProbeResult {
    ProbeResult::Works { after_ms: 12 }
}

fn card() -> Adapter {
    Adapter {
        vendor: "nvidia".into(),
        architecture: "ampere".into(),
        buffer_bytes_max: 2_147_483_648,
        binding_bytes_max: 134_217_728,
        has_f16: true,
        ..Adapter::default()
    }
}

/// All lines of a part, one after the other.
fn text(lines: Vec<ReportLine>) -> String {
    lines.into_iter().map(|line| line.text).collect::<Vec<_>>().join(" ")
}

#[test]
fn all_is_well_and_the_best_transport_goes_along() {
    let mut page = page();
    assert_eq!(super::summary(&page).state, "asking");
    assert_eq!(arrives(&mut page, &[SOCKET, CALL, SESSION]), TRANSPORTS);
    page.on_event(1.0, PageEvent::GraphicsKnown(Some(card())));
    tried(&mut page, TransportKind::WebSocket, works());
    assert_eq!(super::summary(&page).state, "asking", "the better way may still come");
    tried(&mut page, TransportKind::WebTransport, works());
    tried(&mut page, TransportKind::WebRtc, ProbeResult::Silent);
    let summary = super::summary(&page);
    assert_eq!(summary.state, "ready", "what is worse than what works is not missed");
    assert_eq!(summary.text, "This browser can take part: WebGPU (NVIDIA ampere), WebTransport works.");
    let graphics = text(super::graphics(&page));
    assert!(graphics.contains("2.1 GB, 134 MB of one") && graphics.contains("with half"), "{graphics}");
    assert!(text(super::transports(&page)).contains("WebTransport works (12 ms). WebRTC does not"));
    let actions = page.on_event(2.0, PageEvent::Toggle);
    let begins_with = actions.iter().find_map(|action| match action {
        PageAction::Post(PageToPeer::Hello { transport, .. }) => Some(*transport),
        _ => None,
    });
    assert_eq!(begins_with, Some(Some(TransportKind::WebTransport)));
}

#[test]
fn a_model_that_is_too_large_for_the_card_is_named_with_what_it_wants() {
    let mut page = page();
    page.n_parameters = 50_000_000;
    page.on_event(1.0, PageEvent::GraphicsKnown(Some(card())));
    let graphics = text(super::graphics(&page));
    assert!(graphics.contains("wants 200 MB at once, more than the 134 MB"), "{graphics}");
    page.device_choice = DeviceChoice::WebGpu;
    assert!(text(super::graphics(&page)).starts_with("WebGPU works"), "nothing else was asked for");
}

#[test]
fn a_transport_that_fails_is_named_with_its_reason_and_advice() {
    let mut page = page();
    arrives(&mut page, &[SESSION, SOCKET]);
    page.on_event(1.0, PageEvent::GraphicsKnown(Some(card())));
    tried(&mut page, TransportKind::WebSocket, works());
    tried(&mut page, TransportKind::WebTransport, ProbeResult::Silent);
    let summary = super::summary(&page);
    assert_eq!(summary.state, "limited");
    assert!(summary.text.ends_with("WebSocket works, WebTransport does not."), "{summary:?}");
    let ways = text(super::transports(&page));
    for part in ["nothing answered", "UDP", "another network", "Until then WebSocket does"] {
        assert!(ways.contains(part), "{part}: {ways}");
    }
    let mut page = self::page();
    arrives(&mut page, &[SESSION, CALL, SOCKET]);
    page.on_event(1.0, PageEvent::GraphicsKnown(Some(card())));
    tried(&mut page, TransportKind::WebSocket, works());
    tried(&mut page, TransportKind::WebTransport, ProbeResult::Silent);
    tried(&mut page, TransportKind::WebRtc, ProbeResult::Failed { reason: "no packet got through".into() });
    let summary = super::summary(&page);
    assert!(summary.text.ends_with("WebSocket works, WebTransport and WebRTC do not."), "{summary:?}");
}

#[test]
fn one_address_of_a_transport_is_enough() {
    let mut page = page();
    assert_eq!(arrives(&mut page, &[SOCKET; 9]).len(), ADDRESSES_PER_TRANSPORT_MAX);
    tried(&mut page, TransportKind::WebSocket, ProbeResult::Silent);
    tried(&mut page, TransportKind::WebSocket, works());
    tried(&mut page, TransportKind::WebSocket, ProbeResult::Failed { reason: "Refused.".into() });
    assert_eq!(page.preflight.best_transport(), Some(TransportKind::WebSocket));
    assert!(text(super::transports(&page)).starts_with("WebTransport is not offered"));
}

#[test]
fn where_nothing_gets_through_the_summary_says_so() {
    let mut page = page();
    arrives(&mut page, &[SESSION, SOCKET]);
    page.on_event(1.0, PageEvent::GraphicsKnown(None));
    tried(
        &mut page,
        TransportKind::WebTransport,
        ProbeResult::Failed { reason: "Opening handshake failed.".into() },
    );
    tried(&mut page, TransportKind::WebSocket, ProbeResult::Failed { reason: String::new() });
    let summary = super::summary(&page);
    assert_eq!(summary.state, "unable");
    assert!(summary.text.contains("hotspot"), "{summary:?}");
    let ways = text(super::transports(&page));
    assert!(
        ways.contains("WebTransport does not work: Opening handshake failed. WebRTC is not offered"),
        "{ways}"
    );
    assert!(ways.contains("WebSocket does not work: no connection."), "{ways}");
}

#[test]
fn without_webgpu_the_processor_is_offered_and_how_to_get_it() {
    for (web_gpu, part) in
        [(WebGpu::Absent, "as it has no WebGPU"), (WebGpu::NoAdapter, "no graphics processor")]
    {
        let mut page = page();
        page.capabilities.web_gpu = web_gpu;
        arrives(&mut page, &[SESSION]);
        tried(&mut page, TransportKind::WebTransport, works());
        let summary = super::summary(&page);
        assert_eq!(summary.state, "limited");
        assert!(summary.text.contains("can take part: on its processor"), "{summary:?}");
        assert!(summary.text.contains(part), "{summary:?}");
        let graphics = text(super::graphics(&page));
        assert!(graphics.contains("more slowly") && graphics.contains("chrome://flags"), "{graphics}");
        // A visitor who asks for WebGPU only is told how to take part without it.
        page.device_choice = DeviceChoice::WebGpu;
        assert_eq!(super::summary(&page).state, "unable");
        page.device_choice = DeviceChoice::Cpu;
        assert_eq!(super::summary(&page).state, "ready", "it was asked for");
    }
    let mut page = page();
    arrives(&mut page, &[SESSION]);
    tried(&mut page, TransportKind::WebTransport, works());
    page.on_event(1.0, PageEvent::GraphicsKnown(Some(Adapter { is_software: true, ..card() })));
    assert!(super::summary(&page).text.contains("in software only"));
}

#[test]
fn a_page_that_is_not_secure_says_what_to_do() {
    let mut page = page_within(Surroundings { transports: vec![TransportKind::WebSocket], ..surroundings() });
    page.capabilities.secure = false;
    page.capabilities.web_gpu = WebGpu::Absent;
    arrives(&mut page, &[SESSION, SOCKET]);
    let summary = super::summary(&page);
    assert_eq!(summary.state, "unable");
    assert!(summary.text.contains("Try https://run.example"), "{summary:?}");
    assert!(text(super::graphics(&page)).contains("HTTPS only"));
    assert!(text(super::transports(&page)).contains("WebTransport is for pages that came over HTTPS only."));
}

#[test]
fn an_encrypted_page_opens_nothing_else_and_an_old_browser_has_not_all() {
    let encrypted =
        Surroundings { is_encrypted: true, transports: vec![TransportKind::WebSocket], ..surroundings() };
    let mut page = page_within(encrypted.clone());
    assert_eq!(arrives(&mut page, &[SESSION, SOCKET]), []);
    let ways = text(super::transports(&page));
    assert!(ways.contains("WebTransport is not in this browser"), "{ways}");
    assert!(ways.contains("WebSocket is offered without encryption only"), "{ways}");
    let mut page = page_within(encrypted);
    assert_eq!(arrives(&mut page, &[SOCKET, SECURE_SOCKET]), [TransportKind::WebSocket]);
}

#[test]
fn it_is_done_once_and_never_beside_the_work() {
    let mut page = page();
    assert_eq!(arrives(&mut page, &[SESSION]), [TransportKind::WebTransport]);
    assert_eq!(arrives(&mut page, &[SESSION]), []);
    let mut page = self::page();
    page.on_event(0.0, PageEvent::Toggle);
    assert_eq!(arrives(&mut page, &[SESSION]), []);
    page.on_event(1.0, PageEvent::GraphicsKnown(Some(card())));
    let summary = super::summary(&page);
    assert!(summary.text.contains("not tried"), "{summary:?}");
    // Pressed between the answer and the first paint.
    let mut page = self::page();
    arrives(&mut page, &[SESSION]);
    page.on_event(1.0, PageEvent::PreflightLeft);
    assert!(text(super::transports(&page)).contains("was not tried"));
}

#[test]
fn the_cost_is_told_from_the_run() {
    let mut page = page();
    assert!(!text(super::data(&page)).contains("for the program"), "its size is not known");
    page.on_event(1.0, PageEvent::ProgramMeasured(3_200_000));
    let data = text(super::data(&page));
    for part in ["3.2 MB for the program", "123 kB for the model", "1 part of about 10 bytes", "123 kB up"] {
        assert!(data.contains(part), "{part}: {data}");
    }
    assert!(data.contains("Pictures to learn from"), "{data}");
    let data = text(super::data(&fixture::text_page()));
    assert!(data.contains("Text to learn from") && !data.to_lowercase().contains("picture"), "{data}");
    if let Some(run) = &mut page.run {
        let sources = run.data.manifest.gallery.sha256;
        run.data.manifest.stream = Some(DataStream { sources, shard_samples: 300, window_shards: 8 });
    }
    let data = text(super::data(&page));
    assert!(data.contains("in parts of about 300 bytes, others all the time, and are not kept"), "{data}");
    page.run = None;
    assert!(text(super::data(&page)).contains("Asking"));
    let data = text(super::data(&fixture::sampled_page()));
    assert!(data.contains("with each round that this tab is drawn for") && !data.contains("step"), "{data}");
}

#[test]
fn what_the_browser_keeps_to_itself_is_said_so() {
    assert_eq!(text(super::processor(&page())), "This browser does not tell.");
    let told = Surroundings { memory_gib: Some(8.0), n_processors: Some(16), ..surroundings() };
    assert_eq!(text(super::processor(&page_within(told))), "16 threads, 8 GB of memory or more.");
    let told = Surroundings { memory_gib: Some(0.5), ..surroundings() };
    let said = text(super::processor(&page_within(told)));
    assert!(said.starts_with("about 0.5 GB of memory. That is little: close other tabs"), "{said}");
    let told = Surroundings { memory_gib: Some(4.0), ..surroundings() };
    assert_eq!(text(super::processor(&page_within(told))), "about 4 GB of memory.");
    assert_eq!(text(super::browser(&page())), "Chrome 156 on Linux.");
}
