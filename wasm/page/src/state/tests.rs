#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::fixture;
use crate::limits::{
    Battery, Change, DataUsage, Hardware, Input, LimitsRequest, LocalTime, NetworkLink, PauseReason,
    Presence, ScreenLock, Settings,
};

fn page() -> PageState {
    fixture::page()
}

fn ready(device: DeviceKind) -> PageEvent {
    PageEvent::FromPeer(PeerToPage::Ready {
        identity: vec![7; 32],
        peer_id: "12D3".into(),
        device,
        device_name: String::new(),
    })
}

fn told_prediction(request: u32, epoch: u64, probabilities: Vec<f32>) -> PeerToPage {
    PeerToPage::Event(ContributorEvent::Prediction { request, epoch, probabilities })
}

fn posted(actions: &[PageAction]) -> Vec<&PageToPeer> {
    actions
        .iter()
        .filter_map(|action| match action {
            PageAction::Post(message) => Some(message),
            _ => None,
        })
        .collect()
}

#[test]
fn one_click_loads_says_hello_and_starts_when_ready() {
    let mut page = page();
    let actions = page.on_event(0.0, PageEvent::Toggle);
    let hello = PageToPeer::Hello {
        origin: fixture::ORIGIN.into(),
        identity: None,
        device: DeviceChoice::Auto,
        invitation: None,
        transport: None,
    };
    assert_eq!(actions[..2], [PageAction::SpawnPeer, PageAction::Post(hello)]);
    let actions = page.on_event(1.0, ready(DeviceKind::BrowserCpu));
    assert_eq!(actions[0], PageAction::KeepIdentity(vec![7; 32]));
    assert_eq!(posted(&actions), [&PageToPeer::Start, &PageToPeer::LoadGallery]);
    assert_eq!(page.on_event(2.0, PageEvent::Toggle), [PageAction::Post(PageToPeer::Stop)]);
    assert_eq!(page.on_event(3.0, PageEvent::Toggle), [PageAction::Post(PageToPeer::Start)]);
}

#[test]
fn a_run_of_text_has_no_pictures_to_ask_for() {
    let mut page = fixture::text_page();
    page.on_event(0.0, PageEvent::Toggle);
    assert_eq!(posted(&page.on_event(1.0, ready(DeviceKind::BrowserCpu))), [&PageToPeer::Start]);
    assert_eq!((page.image_shape(), page.samples_in_words()), (None, "text"));
    assert_eq!(page.gallery_image(0), None);
    assert_eq!(page.class_name(3), "Class 3");
}

#[test]
fn a_run_without_labels_has_pictures_and_nothing_to_try() {
    let mut page = fixture::swav_page();
    page.on_event(0.0, PageEvent::Toggle);
    assert_eq!(posted(&page.on_event(1.0, ready(DeviceKind::BrowserCpu))), [&PageToPeer::Start]);
    assert_eq!(
        (page.is_of_text(), page.has_nothing_to_try(), page.samples_in_words()),
        (false, true, "pictures")
    );
    assert!(!fixture::page().has_nothing_to_try() && fixture::text_page().has_nothing_to_try());
}

#[test]
fn a_receipt_is_remembered_and_shown_for_its_run() {
    let mut page = page();
    let receipts = vec![fixture::receipt("garments", 1)];
    let told = PageEvent::FromPeer(PeerToPage::Receipts { receipts: receipts.clone() });
    assert_eq!(page.on_event(0.0, told), [PageAction::Remember(receipts.clone())]);
    assert_eq!(page.given(), None);
    let mut kept = BrowserTotals::default();
    receipts.into_iter().for_each(|receipt| kept.add(receipt));
    kept.add(fixture::receipt("another-run", 2));
    assert_eq!(page.on_event(1.0, PageEvent::Remembered(kept)), []);
    assert_eq!(page.given().map(|given| given.n_samples), Some(64));
}

#[test]
fn stop_while_loading_is_not_forgotten() {
    let mut page = page();
    page.on_event(0.0, PageEvent::Toggle);
    assert_eq!(page.on_event(1.0, PageEvent::Toggle), []);
    let actions = page.on_event(2.0, ready(DeviceKind::BrowserCpu));
    assert_eq!(posted(&actions), [&PageToPeer::LoadGallery]);
}

#[test]
fn asking_works_without_contributing() {
    let mut page = page();
    let ask = PageEvent::Drawn(vec![1, 2]);
    assert_eq!(page.on_event(0.0, ask)[0], PageAction::SpawnPeer);
    let actions = page.on_event(1.0, ready(DeviceKind::BrowserCpu));
    let predict = PageToPeer::Predict { request: 1, pixels: vec![1, 2] };
    assert_eq!(posted(&actions), [&PageToPeer::LoadGallery, &predict]);
    assert!(!page.contributing);
    let answer = told_prediction(1, 4, vec![0.1, 0.7, 0.2]);
    page.on_event(2.0, PageEvent::FromPeer(answer));
    let ranking: Vec<usize> = page.prediction.unwrap().ranking.iter().map(|entry| entry.0).collect();
    assert_eq!(ranking, [1, 2, 0]);
}

#[test]
fn an_answer_to_an_older_question_is_not_shown() {
    let mut page = page();
    page.on_event(0.0, PageEvent::LoadModel);
    page.on_event(0.0, ready(DeviceKind::BrowserCpu));
    for pixels in [vec![1], vec![2]] {
        page.on_event(0.0, PageEvent::Drawn(pixels));
    }
    let answer = |request| PageEvent::FromPeer(told_prediction(request, 0, vec![1.0]));
    page.on_event(1.0, answer(1));
    assert_eq!(page.prediction, None);
    assert!(page.is_asking());
    page.on_event(1.0, answer(2));
    assert!(page.prediction.is_some() && !page.is_asking());
    page.on_event(2.0, PageEvent::ForgetQuestion);
    page.on_event(2.0, answer(2));
    assert_eq!(page.prediction, None);
}

#[test]
fn the_same_picture_is_asked_about_again_as_the_model_changes_but_not_often() {
    let mut page = page();
    page.on_event(0.0, PageEvent::Toggle);
    page.on_event(0.0, ready(DeviceKind::BrowserCpu));
    page.on_event(0.0, PageEvent::Drawn(vec![1]));
    let progress = |epoch| {
        PageEvent::FromPeer(PeerToPage::Event(ContributorEvent::Progress(RunProgress {
            epoch,
            ..fixture::progress()
        })))
    };
    let answer = told_prediction(1, 5, vec![1.0]);
    assert_eq!(page.on_event(9000.0, progress(6)), [], "the question is still open");
    page.on_event(9000.0, PageEvent::FromPeer(answer));
    assert_eq!(page.on_event(9000.0, progress(5)), [], "the model is the same");
    let again = PageToPeer::Predict { request: 2, pixels: vec![1] };
    assert_eq!(page.on_event(9000.0, progress(6)), [PageAction::Post(again)]);
    let answer = told_prediction(2, 6, vec![1.0]);
    page.on_event(9001.0, PageEvent::FromPeer(answer));
    assert_eq!(page.on_event(9002.0, progress(7)), [], "too soon");
}

#[test]
fn a_load_that_fails_can_be_tried_again() {
    let mut page = page();
    page.on_event(0.0, PageEvent::Toggle);
    let failed = PageEvent::FromPeer(PeerToPage::Failed { message: "404".into() });
    assert_eq!(page.on_event(1.0, failed), [PageAction::EndPeer]);
    assert_eq!((page.contributing, page.trouble.clone()), (false, Some(PeerLoss::of_words("404"))));
    assert_eq!(page.on_event(2.0, PageEvent::Toggle)[0], PageAction::SpawnPeer);
    assert_eq!(page.trouble, None);
}

#[test]
fn a_worker_that_could_not_be_loaded_without_the_backbone_is_loaded_when_it_is_back() {
    let unloadable = || PageEvent::PeerLost { reason: PeerLoss::of_words("its script could not be loaded") };
    let away = || PageEvent::BackboneLost { reason: AnswerError::NoAnswer.into(), retry_in_ms: 1000 };
    // In either order of the events.
    for events in [[away(), unloadable()], [unloadable(), away()]] {
        let mut page = page();
        page.on_event(0.0, PageEvent::RunArrived(Box::new(fixture::status())));
        page.on_event(1.0, PageEvent::Toggle);
        for event in events {
            page.on_event(2.0, event);
        }
        assert_eq!((page.contributing, page.trouble.clone()), (true, None));
        assert!(page.is_stale());
        let actions = page.on_event(3.0, PageEvent::RunArrived(Box::new(fixture::status())));
        assert_eq!(actions[0], PageAction::SpawnPeer);
        assert_eq!(posted(&page.on_event(4.0, ready(DeviceKind::BrowserCpu)))[0], &PageToPeer::Start);
        assert!(!page.is_stale());
    }
}

#[test]
fn a_visitor_who_stops_waiting_for_the_backbone_is_left_alone() {
    let mut page = page();
    page.on_event(0.0, PageEvent::BackboneLost { reason: AnswerError::NoAnswer.into(), retry_in_ms: 1000 });
    page.on_event(1.0, PageEvent::Toggle);
    page.on_event(2.0, PageEvent::PeerLost { reason: PeerLoss::of_words("its script could not be loaded") });
    page.on_event(3.0, PageEvent::Toggle);
    assert!(!page.contributing);
    assert_eq!(page.on_event(4.0, PageEvent::RunArrived(Box::new(fixture::status()))), []);
}

#[test]
fn a_graphics_driver_that_takes_the_worker_down_is_replaced_by_the_cpu() {
    let mut page = page();
    page.on_event(0.0, PageEvent::Toggle);
    page.on_event(0.0, ready(DeviceKind::BrowserWebGpu));
    let lost = || PageEvent::PeerLost { reason: PeerLoss::of_words("device lost") };
    let actions = page.on_event(1.0, lost());
    assert_eq!(actions[..2], [PageAction::EndPeer, PageAction::SpawnPeer]);
    let hello = PageToPeer::Hello {
        origin: fixture::ORIGIN.into(),
        identity: Some(vec![7; 32]),
        device: DeviceChoice::Cpu,
        invitation: None,
        transport: None,
    };
    assert_eq!(posted(&actions), [&hello]);
    assert!(page.contributing && page.notice.is_some());
    // The CPU crashing too is tried once more, and not a third time.
    page.on_event(2.0, ready(DeviceKind::BrowserCpu));
    assert!(matches!(page.on_event(3.0, lost())[..], [PageAction::EndPeer, PageAction::ReviveIn { .. }]));
    assert_eq!(page.on_event(4.0, PageEvent::Revive)[0], PageAction::SpawnPeer);
    page.on_event(5.0, ready(DeviceKind::BrowserCpu));
    assert_eq!(page.on_event(6.0, lost()), [PageAction::EndPeer]);
    assert!(!page.contributing);
}

#[test]
fn a_panic_on_the_graphics_processor_is_named_and_the_cpu_goes_on() {
    let mut page = page();
    page.on_event(0.0, PageEvent::Toggle);
    page.on_event(0.0, ready(DeviceKind::BrowserWebGpu));
    let broken = Activity::Broken { reason: Interruption::other("device lost") };
    page.on_event(1.0, PageEvent::FromPeer(PeerToPage::Event(ContributorEvent::Activity(broken))));
    page.on_event(1.0, PageEvent::FromPeer(PeerToPage::Failed { message: "device lost".into() }));
    let lost = PageEvent::PeerLost { reason: PeerLoss::of_words("RuntimeError: unreachable") };
    assert_eq!(page.on_event(2.0, lost)[..2], [PageAction::EndPeer, PageAction::SpawnPeer]);
    assert!(page.contributing);
    assert_eq!(page.notice.as_deref(), Some(GRAPHICS_LOST), "in words for a visitor");
    let detail = "device lost".into();
    assert_eq!(page.device_change, Some(DeviceChange::Lost { detail }));
}

#[test]
fn what_cannot_be_mended_releases_the_button() {
    let mut page = page();
    page.on_event(0.0, PageEvent::Toggle);
    page.on_event(0.0, ready(DeviceKind::BrowserCpu));
    let broken = Activity::Broken { reason: Interruption::other("another version") };
    page.on_event(1.0, PageEvent::FromPeer(PeerToPage::Event(ContributorEvent::Activity(broken))));
    assert!(!page.contributing);
    assert_eq!(page.on_event(2.0, PageEvent::Toggle), [PageAction::Post(PageToPeer::Start)]);
}

#[test]
fn a_failed_request_does_not_stop_training() {
    let mut page = page();
    page.on_event(0.0, PageEvent::Toggle);
    page.on_event(0.0, ready(DeviceKind::BrowserCpu));
    page.on_event(0.0, PageEvent::FromPeer(PeerToPage::Failed { message: "no gallery".into() }));
    assert!(page.contributing && page.trouble.is_none());
    assert_eq!(page.notice.as_deref(), Some("no gallery"));
}

#[test]
fn a_browser_that_cannot_take_part_loads_nothing() {
    let mut page = page();
    page.capabilities.secure = false;
    for event in [PageEvent::Toggle, PageEvent::LoadModel, PageEvent::CheckDevice] {
        assert_eq!(page.on_event(0.0, event), []);
    }
    assert!(!page.contributing);
}

#[test]
fn live_events_move_the_curve_and_heal_the_connection() {
    let mut page = page();
    page.on_event(0.0, PageEvent::BackboneLost { reason: BackboneLoss::Ended, retry_in_ms: 1 });
    let point = barnraise_protocol::api::HistoryPoint {
        epoch: 9,
        n_samples_total: 90,
        train_loss: Some(0.5),
        test_accuracy: Some(0.8),
    };
    let live = LiveProgress { steps: vec![point], ..fixture::live() };
    page.on_event(1.0, PageEvent::Live(live));
    assert_eq!(page.backbone, BackboneStatus::Live);
    assert_eq!(page.history.points(), [point]);
    // An event was missed, and with it an evaluation: the next one has it, and no number is without its point.
    let evaluation = Some(barnraise_protocol::api::EvaluationPoint { epoch: 9, test_accuracy: 0.9 });
    page.on_event(2.0, PageEvent::Live(LiveProgress { evaluation, ..fixture::live() }));
    assert_eq!(page.history.accuracies(), [(9.0, f64::from(0.9_f32))]);
}

#[test]
fn a_picture_of_the_gallery_is_asked_about_with_its_label() {
    let mut page = page();
    page.on_event(0.0, PageEvent::LoadModel);
    page.on_event(0.0, ready(DeviceKind::BrowserCpu));
    assert_eq!(page.on_event(0.0, PageEvent::Picked(0)), [], "there is no gallery yet");
    let images = [vec![1; 784], vec![2; 784]].concat();
    page.on_event(
        0.0,
        PageEvent::FromPeer(PeerToPage::Event(ContributorEvent::Gallery { images, labels: vec![0, 2] })),
    );
    let predict = PageToPeer::Predict { request: 1, pixels: vec![2; 784] };
    assert_eq!(page.on_event(0.0, PageEvent::Picked(1)), [PageAction::Post(predict)]);
    assert_eq!(page.label(), Some(2));
    assert_eq!(page.on_event(0.0, PageEvent::Picked(2)), []);
}

#[test]
fn an_invitation_reaches_the_worker_and_a_login_becomes_a_link() {
    let mut page = page().invited_by(Some("code".into()));
    let actions = page.on_event(0.0, PageEvent::Toggle);
    let [PageToPeer::Hello { invitation, .. }] = posted(&actions)[..] else { panic!("{actions:?}") };
    assert_eq!(invitation.as_deref(), Some("code"));
    for (url, is_link) in [("https://h/login?peer=p", true), ("javascript:alert(1)", false)] {
        page.activity = Activity::SigningIn { url: url.into() };
        assert_eq!(page.sign_in_url(), is_link.then_some(url));
    }
}

/// A page on a phone that is not plugged in.
fn unplugged_phone() -> PageState {
    let hardware = Hardware { is_phone: true, is_small: false };
    let limits = ResourceLimits::new(
        hardware,
        Settings::of(hardware),
        DataUsage::default(),
        LocalTime { day: 7, minute: 0 },
    );
    let battery = Battery::Known { is_charging: false, level: 0.5 };
    page().with_limits(limits.sensing(
        battery,
        NetworkLink::default(),
        Presence::default(),
        ScreenLock::default(),
    ))
}

fn charging(is_charging: bool) -> PageEvent {
    PageEvent::Limits(Input::Battery(Battery::Known { is_charging, level: 0.5 }))
}

fn clock(day: i32) -> PageEvent {
    PageEvent::Limits(Input::Clock(LocalTime { day, minute: 0 }))
}

#[test]
fn a_tab_that_may_not_work_loads_nothing_until_it_may() {
    let mut page = unplugged_phone();
    assert_eq!(page.on_event(0.0, PageEvent::Toggle), []);
    assert_eq!((page.contributing, page.pause()), (true, Some(PauseReason::NotCharging)));
    assert_eq!(page.on_event(1.0, charging(true)), [], "for a moment longer");
    assert_eq!(page.on_event(9000.0, clock(7))[0], PageAction::SpawnPeer);
    let actions = page.on_event(9001.0, ready(DeviceKind::BrowserCpu));
    let gentle = PageToPeer::Pacing(page.limits.pacing());
    assert!(page.limits.pacing().is_gentle);
    assert_eq!(posted(&actions), [&gentle, &PageToPeer::Start, &PageToPeer::LoadGallery]);
    // Once it is loaded, a pause is a stop that hands in what is done.
    assert_eq!(page.on_event(9002.0, charging(false)), [PageAction::Post(PageToPeer::Stop)]);
    assert_eq!(page.on_event(9003.0, charging(false)), []);
    page.on_event(9004.0, charging(true));
    assert_eq!(page.on_event(99_000.0, clock(7)), [PageAction::Post(PageToPeer::Start)]);
    // A tab that does not contribute is not paused.
    page.on_event(99_001.0, charging(false));
    assert_eq!(page.on_event(99_002.0, PageEvent::Toggle), []);
    assert_eq!(page.pause(), None);
}

#[test]
fn a_tab_that_was_cut_off_goes_on_and_stays_paused_where_it_was() {
    let mut page = page();
    assert_eq!(page.on_event(0.0, PageEvent::GoOn { is_paused: false })[0], PageAction::SpawnPeer);
    assert_eq!((page.contributing, page.pause()), (true, None));
    let mut page = self::page();
    assert_eq!(
        page.on_event(0.0, PageEvent::GoOn { is_paused: true }),
        [],
        "what may not work is not loaded"
    );
    assert_eq!((page.contributing, page.pause()), (true, Some(PauseReason::Visitor)));
    assert_eq!(page.on_event(9000.0, clock(7)), [], "however much time goes by");
    assert_eq!(page.on_event(9001.0, PageEvent::Limits(Input::TogglePause))[0], PageAction::SpawnPeer);
}

#[test]
fn what_is_set_reaches_the_worker_once() {
    let mut page = page();
    page.on_event(0.0, PageEvent::Toggle);
    page.on_event(0.0, ready(DeviceKind::BrowserCpu));
    let throttle = PageEvent::Limits(Input::Set(Change::Duty(20)));
    let actions = page.on_event(1.0, throttle.clone());
    let slower = PageToPeer::Pacing(page.limits.pacing());
    assert_eq!(posted(&actions), [&slower]);
    let settings = page.limits.settings();
    assert_eq!(page.on_event(2.0, throttle), [PageAction::Limits(LimitsRequest::Keep(settings))]);
    // Another worker knows nothing of it.
    page.on_event(3.0, PageEvent::PeerLost { reason: PeerLoss::of_words("gone") });
    page.on_event(4.0, PageEvent::Revive);
    let actions = page.on_event(5.0, ready(DeviceKind::BrowserCpu));
    assert_eq!(posted(&actions)[..2], [&slower, &PageToPeer::Start]);
    let pause = || PageEvent::Limits(Input::TogglePause);
    assert_eq!(page.on_event(6.0, pause()), [PageAction::Post(PageToPeer::Stop)]);
    assert_eq!(page.on_event(7.0, pause()), [PageAction::Post(PageToPeer::Start)]);
}

#[test]
fn what_the_worker_moves_counts_for_the_day() {
    let mut page = unplugged_phone();
    page.preflight.program_bytes = Some(1_000_000);
    page.on_event(0.0, charging(true));
    page.on_event(9000.0, PageEvent::Toggle);
    for bytes in [1000, 2_000_000, 3_000_000] {
        let loading = PeerToPage::Loading { bytes, bytes_total: Some(3_000_000) };
        page.on_event(9000.0, PageEvent::FromPeer(loading));
    }
    page.on_event(9000.0, ready(DeviceKind::BrowserCpu));
    let given = Contribution { bytes_up: 100_000_000, bytes_down: 149_000_000, ..Contribution::default() };
    let actions =
        page.on_event(9001.0, PageEvent::FromPeer(PeerToPage::Event(ContributorEvent::Contribution(given))));
    let write = PageAction::Limits(LimitsRequest::Write { day: 7, bytes: 250_000_000 });
    assert_eq!(actions, [write, PageAction::Post(PageToPeer::Stop)]);
    assert_eq!(page.pause(), Some(PauseReason::Cap { mb: 250 }));
    assert_eq!(page.on_event(9002.0, PageEvent::Limits(Input::Waive)).len(), 2, "it is kept, and goes on");
    assert_eq!(page.pause(), None);
}

#[test]
fn what_nobody_measured_and_no_worker_counts_is_counted_too() {
    let mut page = page();
    page.on_event(0.0, PageEvent::Toggle);
    let loading = PeerToPage::Loading { bytes: 1000, bytes_total: Some(3_000_000) };
    // It is asked for on the way, and counted once it is known.
    assert_eq!(page.on_event(1.0, PageEvent::FromPeer(loading)), [PageAction::ProbeTransports(Vec::new())]);
    for _ in 0..2 {
        page.on_event(1.0, PageEvent::ProgramMeasured(300_000));
        assert_eq!(page.limits.bytes_today(), 300_000);
    }
    page.on_event(2.0, PageEvent::FromPeer(PeerToPage::Downloaded { bytes: 40_000 }));
    page.on_event(3.0, PageEvent::Received(2_000));
    assert_eq!(page.limits.bytes_today(), 342_000);
    let write = PageAction::Limits(LimitsRequest::Write { day: 0, bytes: 342_000 });
    assert_eq!(page.on_event(4.0, clock(0)), [write]);
}

#[test]
fn a_program_on_its_way_is_left_there_when_data_is_to_be_spared() {
    let loading = |bytes| PageEvent::FromPeer(PeerToPage::Loading { bytes, bytes_total: Some(3_000_000) });
    let link = |is_metered| PageEvent::Limits(Input::Link(NetworkLink { is_metered, saves_data: false }));
    let mut page = page();
    page.preflight.program_bytes = Some(300_000);
    page.on_event(0.0, PageEvent::Toggle);
    page.on_event(1.0, loading(1000));
    assert_eq!(page.on_event(2.0, link(true)), [PageAction::EndPeer]);
    assert_eq!((&page.peer, page.pause()), (&WorkerState::Absent, Some(PauseReason::Metered)));
    page.on_event(3.0, link(false));
    assert!(page.on_event(9000.0, clock(0)).contains(&PageAction::SpawnPeer));
    // What is all there costs nothing more.
    page.on_event(9001.0, loading(3_000_000));
    assert_eq!(page.on_event(9002.0, link(true)), []);
    // What somebody waits for was asked for.
    let mut page = self::page();
    page.preflight.program_bytes = Some(300_000);
    page.on_event(0.0, PageEvent::Toggle);
    page.on_event(0.0, PageEvent::LoadModel);
    page.on_event(1.0, loading(1000));
    assert_eq!(page.on_event(2.0, link(true)), []);
}

#[test]
fn a_program_that_was_kept_costs_nothing_again() {
    let mut page = page();
    page.preflight.program_bytes = Some(1_000_000);
    page.on_event(0.0, PageEvent::Toggle);
    let loading = PeerToPage::Loading { bytes: 3_000_000, bytes_total: Some(3_000_000) };
    page.on_event(1.0, PageEvent::FromPeer(loading));
    assert_eq!(page.limits.bytes_today(), 0);
}

#[test]
fn a_model_that_the_adapter_cannot_hold_is_left_to_the_processor() {
    let adapter = |n_bytes| crate::preflight::Adapter {
        binding_bytes_max: n_bytes,
        buffer_bytes_max: u64::MAX,
        ..crate::preflight::Adapter::default()
    };
    let wanted = 4 * fixture::N_PARAMETERS;
    for (n_bytes, device) in
        [(wanted, DeviceChoice::Auto), (wanted - 1, DeviceChoice::Cpu), (0, DeviceChoice::Auto)]
    {
        let mut page = page();
        page.on_event(0.0, PageEvent::GraphicsKnown(Some(adapter(n_bytes))));
        let actions = page.on_event(1.0, PageEvent::Toggle);
        let [PageToPeer::Hello { device: got, .. }] = posted(&actions)[..] else { panic!("{actions:?}") };
        assert_eq!(*got, device, "{n_bytes} bytes");
    }
}
