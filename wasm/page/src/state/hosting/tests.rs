#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_messages::{DeviceChoice, TransportKind};

use super::*;
use crate::fixture;
use crate::limits::{Change, Input, LimitsRequest, LocalTime, NetworkLink};
use crate::state::{PageEvent, TabEvent, TabMessage, WorkerState};

fn work(n_experts: u32, bytes_received: u64, bytes_sent: u64) -> HostedWork {
    HostedWork { n_experts, bytes_received, bytes_sent, ..HostedWork::default() }
}

fn told(work: HostedWork) -> PageEvent {
    PageEvent::FromHost(PeerToPage::Hosting { work, problem: None })
}

fn not_hosting(reason: Option<&str>) -> PageEvent {
    PageEvent::FromHost(PeerToPage::NotHosting { reason: reason.map(str::to_owned) })
}

fn metered(is_metered: bool) -> PageEvent {
    PageEvent::Limits(Input::Link(NetworkLink { is_metered, saves_data: false }))
}

/// A page that hosts, since an event at 1 ms.
fn hosting() -> PageState {
    let mut page = fixture::hosted_page();
    page.on_event(0.0, PageEvent::ToggleHosting);
    assert_eq!(page.on_event(1.0, told(work(4, 0, 0))), []);
    assert_eq!(page.hosting.status, HostingStatus::Serving { problem: None });
    page
}

fn causes(page: &PageState) -> &[HostingEnd] {
    match &page.hosting.status {
        HostingStatus::Ended { causes } => causes,
        status => panic!("{status:?}"),
    }
}

const STOP: [PageAction; 1] = [PageAction::PostHost(PageToPeer::Stop)];

#[test]
fn a_click_starts_a_second_worker_and_another_one_has_it_hand_over() {
    let mut page = fixture::hosted_page();
    page.device_choice = DeviceChoice::Cpu;
    page.last_transport = Some(TransportKind::WebRtc);
    let host = PageToPeer::Host {
        origin: fixture::ORIGIN.into(),
        device: DeviceChoice::Cpu,
        transport: Some(TransportKind::WebRtc),
    };
    let actions = page.on_event(0.0, PageEvent::ToggleHosting);
    assert_eq!(actions, [PageAction::SpawnHost, PageAction::PostHost(host)]);
    let connected = PeerToPage::Connected { transport: TransportKind::WebTransport, failures: Vec::new() };
    let actions = page.on_event(1.0, PageEvent::FromHost(connected));
    assert_eq!(actions, [PageAction::SaveTransport(TransportKind::WebTransport)]);
    assert_eq!(page.connection, None, "it is not the connection of the worker that contributes");
    page.on_event(2.0, told(work(4, 0, 0)));
    assert_eq!((page.contributing, &page.peer), (false, &WorkerState::Absent));
    assert_eq!(page.on_event(3.0, PageEvent::ToggleHosting), STOP);
    assert_eq!(page.on_event(4.0, PageEvent::ToggleHosting), [], "it hands over already");
    assert_eq!(page.on_event(5.0, not_hosting(None)), [PageAction::EndHost]);
    assert_eq!((causes(&page), page.hosting.work.n_experts), (&[HostingEnd::Visitor][..], 0));
    assert_eq!(page.on_event(6.0, PageEvent::ToggleHosting)[0], PageAction::SpawnHost);
}

#[test]
fn what_has_no_expert_yet_ends_at_once() {
    let mut page = fixture::hosted_page();
    page.on_event(0.0, PageEvent::ToggleHosting);
    assert_eq!(page.on_event(1.0, PageEvent::ToggleHosting), [PageAction::EndHost]);
    assert_eq!(causes(&page), [HostingEnd::Visitor]);
}

#[test]
fn the_two_workers_are_not_taken_for_each_other() {
    let mut page = hosting();
    page.on_event(2.0, PageEvent::Toggle);
    page.on_event(3.0, fixture::ready());
    let failed = || PeerToPage::Failed { message: "no backbone answers".into() };
    // The host fails, and the contributor goes on.
    let mut other = hosting();
    other.on_event(2.0, PageEvent::Toggle);
    other.on_event(3.0, fixture::ready());
    assert_eq!(other.on_event(4.0, PageEvent::FromHost(failed())), [PageAction::EndHost]);
    assert!(other.contributing && other.notice.is_none() && matches!(other.peer, WorkerState::Ready { .. }));
    // The contributor is gone, and the host goes on.
    let lost = PageEvent::PeerLost { reason: PeerLoss::of_words("gone") };
    assert!(!page.on_event(4.0, lost).contains(&PageAction::EndHost));
    page.on_event(5.0, PageEvent::FromPeer(failed()));
    page.on_event(6.0, PageEvent::FromPeer(PeerToPage::NotHosting { reason: None }));
    assert_eq!(page.hosting.status, HostingStatus::Serving { problem: None });
    page.on_event(7.0, PageEvent::Toggle);
    assert_eq!(page.hosting.status, HostingStatus::Serving { problem: None }, "it is not contributing");
}

#[test]
fn only_an_open_run_with_experts_elsewhere_offers_it_and_only_in_the_leading_tab() {
    let is_offered = |mut page: PageState| {
        let is_offered = page.offers_hosting();
        let actions = page.on_event(1.0, PageEvent::ToggleHosting);
        assert_eq!(actions.contains(&PageAction::SpawnHost), is_offered, "{actions:?}");
        is_offered
    };
    assert!(is_offered(fixture::hosted_page()));
    assert!(!is_offered(fixture::page()));
    for mode in [AccessMode::Invitation, AccessMode::Allowlist] {
        let mut page = fixture::hosted_page();
        page.run.as_mut().unwrap().access.mode = mode;
        assert!(!is_offered(page));
    }
    let mut page = fixture::hosted_page();
    page.capabilities.secure = false;
    assert!(!is_offered(page));
    assert!(!is_offered(fixture::hosted_page().among_tabs()), "the role is not known yet");
    let among = |event| {
        let mut page = fixture::hosted_page().among_tabs();
        page.on_event(0.0, PageEvent::Tabs(event));
        page
    };
    assert!(!is_offered(among(TabEvent::Follow)));
    assert!(is_offered(among(TabEvent::Lead { identity: None, transport: None })));
}

#[test]
fn the_limits_end_it_and_the_visitor_decides_anew() {
    let mut page = hosting();
    assert_eq!(page.on_event(2.0, PageEvent::Limits(Input::TogglePause)), [], "this pauses contributing");
    assert_eq!(page.on_event(3.0, metered(true)), STOP);
    assert_eq!(page.on_event(4.0, not_hosting(None)), [PageAction::EndHost]);
    assert_eq!(causes(&page), [HostingEnd::Limits(PauseReason::Metered)]);
    assert_eq!(page.on_event(5.0, PageEvent::ToggleHosting), []);
    assert_eq!(page.on_event(6.0, metered(false)), [], "nothing starts it but the visitor");
    assert_eq!(page.on_event(7.0, PageEvent::ToggleHosting)[0], PageAction::SpawnHost);
    // A program on its way is left there.
    assert_eq!(page.on_event(8.0, metered(true)), [PageAction::EndHost]);
}

#[test]
fn what_a_host_moves_counts_for_the_day_once() {
    let mut page = hosting();
    page.on_event(2.0, told(work(4, 100, 50)));
    page.on_event(3.0, told(work(4, 150, 50)));
    page.on_event(4.0, PageEvent::FromHost(PeerToPage::Downloaded { bytes: 7 }));
    assert_eq!(page.limits.bytes_today(), 207);
    // Handing over is data, too.
    page.on_event(5.0, PageEvent::ToggleHosting);
    page.on_event(6.0, told(work(0, 150, 1050)));
    let ending = HostingStatus::Ending { why: HostingEnd::Visitor, since_ms: 5.0 };
    assert_eq!((page.limits.bytes_today(), &page.hosting.status), (1207, &ending));
    page.on_event(7.0, not_hosting(None));
    page.on_event(8.0, PageEvent::ToggleHosting);
    page.on_event(9.0, told(work(4, 10, 10)));
    assert_eq!(page.limits.bytes_today(), 1227, "another worker counts from zero");
    let cap = Input::Set(Change::CapMb(Some(50)));
    page.on_event(10.0, PageEvent::Limits(cap));
    page.on_event(11.0, told(work(4, 50_000_000, 10)));
    let actions = page.on_event(12.0, PageEvent::Limits(Input::Clock(LocalTime { day: 0, minute: 1 })));
    assert_eq!(actions.last(), STOP.last(), "{actions:?}");
    page.on_event(13.0, not_hosting(None));
    assert_eq!(causes(&page), [HostingEnd::Limits(PauseReason::Cap { mb: 50 })]);
}

#[test]
fn its_program_counts_where_it_is_fetched() {
    for (bytes, counted) in [(1000, 300_000), (3_000_000, 0)] {
        let mut page = fixture::hosted_page();
        page.preflight.program_bytes = Some(300_000);
        page.on_event(0.0, PageEvent::ToggleHosting);
        for bytes in [bytes, 3_000_000] {
            let loading = PeerToPage::Loading { bytes, bytes_total: Some(3_000_000) };
            page.on_event(1.0, PageEvent::FromHost(loading));
        }
        assert_eq!(page.limits.bytes_today(), counted);
        let want = HostingStatus::Starting { bytes: 3_000_000, bytes_total: Some(3_000_000) };
        assert_eq!((page.hosting.status, page.peer), (want, WorkerState::Absent));
    }
}

#[test]
fn a_host_that_fails_says_why_and_may_be_tried_again() {
    let failed = PageEvent::FromHost(PeerToPage::Failed { message: "say hello first".into() });
    let lost = PageEvent::HostLost { reason: PeerLoss::of_words("gone") };
    let outdated = PageEvent::FromHost(PeerToPage::Outdated);
    let ends = [
        (failed, HostingEnd::Lost(PeerLoss::of_words("say hello first"))),
        (lost, HostingEnd::Lost(PeerLoss::of_words("gone"))),
        (not_hosting(Some("its leases are gone")), HostingEnd::Told("its leases are gone".into())),
        (outdated, HostingEnd::Lost(PeerLoss::Outdated)),
    ];
    for (event, end) in ends {
        let mut page = hosting();
        let is_outdated = end == HostingEnd::Lost(PeerLoss::Outdated);
        assert_eq!(page.on_event(2.0, event.clone()), [PageAction::EndHost]);
        assert_eq!((causes(&page), page.endurance.has_new_version), (&[end.clone()][..], is_outdated));
        // What was on its way when it ended.
        page.on_event(3.0, told(work(4, 9, 9)));
        assert_eq!(page.on_event(3.0, event.clone()), []);
        assert_eq!((causes(&page), page.limits.bytes_today()), (&[end.clone()][..], 0));
        assert_eq!(page.on_event(4.0, PageEvent::ToggleHosting)[0], PageAction::SpawnHost);
        // While it hands over, both reasons are told.
        page.on_event(5.0, told(work(4, 0, 0)));
        page.on_event(6.0, metered(true));
        page.on_event(7.0, event);
        assert_eq!(causes(&page), [HostingEnd::Limits(PauseReason::Metered), end]);
    }
}

#[test]
fn a_hand_over_has_a_minute() {
    let clock = || PageEvent::Limits(Input::Clock(LocalTime { day: 0, minute: 1 }));
    let mut page = hosting();
    page.on_event(10.0, PageEvent::ToggleHosting);
    assert_eq!(page.on_event(HAND_OVER_MAX_MS + 9.0, clock()), []);
    assert_eq!(page.on_event(HAND_OVER_MAX_MS + 10.0, clock()), [PageAction::EndHost]);
    assert_eq!(causes(&page), [HostingEnd::Visitor, HostingEnd::Overdue]);
}

#[test]
fn a_tab_that_no_longer_leads_hands_over() {
    let mut page = fixture::hosted_page().among_tabs();
    page.on_event(0.0, PageEvent::Tabs(TabEvent::Lead { identity: None, transport: None }));
    page.on_event(1.0, PageEvent::ToggleHosting);
    page.on_event(2.0, told(work(4, 0, 0)));
    let actions = page.on_event(3.0, PageEvent::Tabs(TabEvent::Deposed));
    assert!(actions.contains(&STOP[0]) && !actions.contains(&PageAction::EndHost), "{actions:?}");
    assert!(page.offers_hosting(), "its visitor sees that it hands over");
    assert_eq!(page.on_event(4.0, not_hosting(None)), [PageAction::EndHost]);
    assert_eq!(causes(&page), [HostingEnd::OtherTab]);
    assert!(!page.offers_hosting());
}

#[test]
fn no_other_tab_turns_the_worker_that_contributes_into_a_host() {
    let mut page = fixture::hosted_page().among_tabs();
    page.on_event(0.0, PageEvent::Tabs(TabEvent::Lead { identity: None, transport: None }));
    page.on_event(1.0, PageEvent::LoadModel);
    page.on_event(2.0, fixture::ready());
    let host = PageToPeer::Host { origin: String::new(), device: DeviceChoice::Auto, transport: None };
    let actions = page.on_event(3.0, PageEvent::Tabs(TabEvent::Received(TabMessage::Post(host.clone()))));
    assert!(!actions.contains(&PageAction::Post(host)), "{actions:?}");
}

#[test]
fn the_screen_is_kept_on_for_a_host_where_the_visitor_wants_that() {
    let screen = |is_on| PageAction::Limits(LimitsRequest::KeepScreenOn(is_on));
    let set = || PageEvent::Limits(Input::Set(Change::KeepsScreenOn(true)));
    assert!(!fixture::hosted_page().on_event(2.0, set()).contains(&screen(true)));
    let mut page = hosting();
    assert!(page.on_event(2.0, set()).contains(&screen(true)));
    // Starting and stopping to contribute does not change it.
    for at in [3.0, 4.0] {
        let actions = page.on_event(at, PageEvent::Toggle);
        assert!(!actions.contains(&screen(false)), "{actions:?}");
    }
}

#[test]
fn a_page_that_hosts_is_not_loaded_anew_behind_its_visitor() {
    let new_version = || PageEvent::NewVersion { is_hidden: true };
    assert_eq!(hosting().on_event(2.0, new_version()), []);
    assert_eq!(fixture::hosted_page().on_event(2.0, new_version()), [PageAction::Reload]);
}
