#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_messages::{
    Contribution, ContributorEvent, DeviceChange, Interruption, PageToPeer, PeerToPage, TransportKind,
};
use barnraise_protocol::Refusal;

use super::*;
use crate::fixture;
use crate::limits::{Change, Input};
use crate::state::{AnswerError, Gallery, OwnFile, PageEvent, PeerLoss, Prediction};

fn working(device: DeviceKind, activity: Activity) -> PageState {
    let mut page = fixture::page();
    page.contributing = true;
    page.backbone = BackboneStatus::Live;
    page.peer = WorkerState::Ready { device, device_name: "llvmpipe".into() };
    page.activity = activity;
    // The worker was told to begin.
    page.on_event(0.0, PageEvent::ForgetQuestion);
    page
}

#[test]
fn start_while_files_are_read_says_that_it_waits_for_them() {
    for is_loaded in [false, true] {
        let mut page = fixture::sampled_page();
        page.backbone = BackboneStatus::Live;
        if is_loaded {
            page.on_event(0.0, fixture::ready());
        }
        page.on_event(0.0, PageEvent::OwnFile(OwnFile::Begun));
        page.on_event(1.0, PageEvent::Toggle);
        let found = sentence(&page);
        // The training program comes meanwhile.
        let wanted = if is_loaded { "begins when they are read" } else { "the training program" };
        assert!(found.text.contains(wanted), "{found:?}");
        page.on_event(2.0, PageEvent::OwnFile(OwnFile::Read { class: 0, pixels: None }));
        assert!(!sentence(&page).text.contains("Reading your files"), "{found:?}");
    }
}

/// Every activity, with what the sentence must contain.
fn activities() -> Vec<(Activity, &'static str, &'static str)> {
    let (bytes, bytes_total) = (450_000, 1_000_000);
    let reason = || Interruption::other("timed out");
    vec![
        (Activity::Idle, "idle", "begin"),
        (Activity::Connecting, "connecting", "backbone"),
        (
            Activity::Reconnecting { retry_in_ms: 4000, reason: reason() },
            "reconnecting",
            "in about 4 seconds",
        ),
        (Activity::FetchingModel { bytes, bytes_total }, "fetching-model", "45 % of 1.0 MB"),
        (Activity::FetchingData { bytes, bytes_total }, "fetching-data", "45 % of 1.0 MB"),
        (Activity::WarmingUp, "warming-up", "the processor"),
        (Activity::Training { epoch: 123 }, "training", "step 124"),
        (Activity::Sending { epoch: 123, bytes, bytes_total }, "sending", "step 124: 45 %"),
        (Activity::BeingChecked { epoch: 123, n_left: 2 }, "being-checked", "2 to go"),
        (Activity::BeingChecked { epoch: 123, n_left: 0 }, "being-checked", "step 124"),
        (Activity::WaitingForOthers { epoch: 123 }, "waiting-for-others", "others"),
        (
            Activity::WaitingForTurn { round: 123, n_trainers: 9, sample_size: 3 },
            "waiting-for-turn",
            "3 devices train a round, drawn by chance from 9",
        ),
        (Activity::Averaging { epoch: 123 }, "averaging", "for the others"),
        (Activity::Stopping, "stopping", "finished"),
        (Activity::Broken { reason: reason() }, "broken", "timed out"),
    ]
}

#[test]
fn every_activity_has_its_sentence() {
    for (activity, doing, contains) in activities() {
        let found = sentence(&working(DeviceKind::BrowserCpu, activity));
        assert_eq!(found.doing, doing);
        assert!(found.text.contains(contains), "{found:?}");
        assert!(found.text.ends_with(['.', '…']) && !found.spoken.is_empty(), "{found:?}");
    }
}

#[test]
fn a_tab_that_the_run_goes_on_without_says_so() {
    for activity in [Activity::Training { epoch: 9 }, Activity::WaitingForOthers { epoch: 9 }] {
        let mut page = working(DeviceKind::BrowserCpu, activity);
        for (n_steps_missed, is_told) in [(0, false), (2, false), (3, true), (40, true)] {
            page.contribution = Contribution { n_steps_missed, ..Contribution::default() };
            let text = sentence(&page).text;
            let words = format!("The last {n_steps_missed} steps were made without it");
            assert_eq!(text.contains(&words), is_told, "{text}");
        }
    }
}

#[test]
fn the_spoken_sentence_stays_the_same_while_an_epoch_goes_by() {
    let mut spoken: Vec<String> = Vec::new();
    for (activity, doing, _) in activities() {
        let mut page = working(DeviceKind::BrowserCpu, activity);
        page.contribution = Contribution { n_samples_computed: 64, ..Contribution::default() };
        if ["fetching-model", "fetching-data", "training", "sending", "waiting-for-others"].contains(&doing) {
            spoken.push(sentence(&page).spoken);
        }
    }
    spoken.dedup();
    assert_eq!(spoken.len(), 1, "{spoken:?}");
}

#[test]
fn spoken_progress_has_no_numbers() {
    let mut page = fixture::page();
    page.peer = WorkerState::Loading { bytes: 5_000_000, bytes_total: None };
    let found = sentence(&page);
    assert_eq!(found.text, "Fetching the training program: 5.0 MB.");
    assert!(!found.spoken.contains(char::is_numeric));
    // As the preflight says it: compressed.
    page.preflight.program_bytes = Some(3_500_000);
    page.peer = WorkerState::Loading { bytes: 15_500_000, bytes_total: Some(31_000_000) };
    assert_eq!(sentence(&page).text, "Fetching the training program: 50 % of 3.5 MB.");
    page.peer = WorkerState::Loading { bytes: 5, bytes_total: Some(5) };
    assert_eq!(sentence(&page).doing, "preparing");
}

#[test]
fn before_the_click_it_says_whether_the_backbone_is_there() {
    let mut page = fixture::page();
    assert_eq!(sentence(&page).doing, "asking");
    page.backbone = BackboneStatus::Lost { reason: AnswerError::NoAnswer.into(), retry_in_ms: 8000 };
    let found = sentence(&page);
    assert_eq!(found.doing, "unreachable");
    assert!(found.text.contains("no answer") && found.text.contains("in about 8 seconds"), "{found:?}");
    page.contributing = true;
    assert!(sentence(&page).text.ends_with("This tab then begins by itself."));
    page.contributing = false;
    page.backbone = BackboneStatus::Live;
    assert_eq!(sentence(&page).doing, "idle");
    page.contribution.n_samples_accepted = 1234;
    assert!(sentence(&page).text.contains("1,234 samples"));
}

#[test]
fn a_browser_that_cannot_take_part_is_told_why() {
    let mut page = fixture::page();
    page.capabilities.secure = false;
    assert!(sentence(&page).text.contains("HTTPS"));
}

#[test]
fn a_crash_is_named_until_the_next_click() {
    let mut page = fixture::page();
    page.on_event(0.0, PageEvent::Toggle);
    page.on_event(0.0, PageEvent::PeerLost { reason: PeerLoss::of_words("out of memory") });
    assert!(sentence(&page).text.contains("out of memory"));
    let actions = page.on_event(0.0, PageEvent::Toggle);
    assert_eq!(actions.len(), 2);
    assert_eq!(sentence(&page).doing, "loading");
}

#[test]
fn the_device_line_explains_the_cpu() {
    let mut page = working(DeviceKind::BrowserCpu, Activity::Idle);
    page.capabilities.web_gpu = WebGpu::Absent;
    assert_eq!(device_line(&page), "On the processor, as this browser offers no WebGPU.");
    page.capabilities.web_gpu = WebGpu::NoAdapter;
    assert!(device_line(&page).contains("WebGPU has no graphics processor"));
    page.device_choice = DeviceChoice::Cpu;
    assert_eq!(device_line(&page), "On the processor.");
    page.on_event(0.0, PageEvent::FromPeer(PeerToPage::Threads { n_threads: 4 }));
    assert_eq!(device_line(&page), "On the processor, with 4 threads.");
    page.on_event(0.0, PageEvent::FromPeer(PeerToPage::Threads { n_threads: 1 }));
    page.device_choice = DeviceChoice::Auto;
    page.device_change = Some(DeviceChange::Slower);
    assert_eq!(device_line(&page), "On the processor, which is faster here than this graphics adapter.");
    page.device_change = Some(DeviceChange::Lost { detail: "Unknown: x".into() });
    assert_eq!(device_line(&page), "On the processor, as the graphics processor stopped answering.");
    let device_name = "Apple Metal-3".to_owned();
    page.peer = WorkerState::Ready { device: DeviceKind::BrowserWebGpu, device_name };
    assert_eq!(device_line(&page), "On the graphics processor through WebGPU: Apple Metal-3.");
}

#[test]
fn before_the_click_the_device_line_promises_what_was_asked_for() {
    let mut page = fixture::page();
    let mut line = |choice, web_gpu| {
        (page.device_choice, page.capabilities.web_gpu) = (choice, web_gpu);
        device_line(&page)
    };
    assert!(line(DeviceChoice::Auto, WebGpu::Asking).contains("Looking"));
    assert!(line(DeviceChoice::Auto, WebGpu::Adapter).contains("or the processor where that is faster"));
    for web_gpu in [WebGpu::NoAdapter, WebGpu::Absent] {
        assert!(line(DeviceChoice::Auto, web_gpu).ends_with("the processor will do the work."));
        assert!(line(DeviceChoice::WebGpu, web_gpu).contains("no "));
    }
    assert!(line(DeviceChoice::WebGpu, WebGpu::Adapter).starts_with("The graphics processor will"));
    page.capabilities.secure = false;
    assert_eq!(device_line(&page), "Nothing is computed in this tab.");
}

#[test]
fn the_verdict_says_how_sure_it_is_and_whether_it_was_right() {
    let mut page = working(DeviceKind::BrowserCpu, Activity::Idle);
    assert!(verdict(&page).contains("pick"));
    page.gallery = Some(Gallery { images: vec![0; 784], labels: vec![1] });
    let actions = page.on_event(0.0, PageEvent::Picked(0));
    assert!(matches!(actions[..], [crate::state::PageAction::Post(PageToPeer::Predict { .. })]));
    assert_eq!(verdict(&page), "Looking…");
    let answer = ContributorEvent::Prediction { request: 1, epoch: 1, probabilities: vec![0.5, 0.45, 0.05] };
    page.on_event(0.0, PageEvent::FromPeer(PeerToPage::Event(answer)));
    assert_eq!(verdict(&page), "Probably: T-shirt. It is labelled: Trouser.");
    page.prediction = Some(Prediction { epoch: 1, ranking: vec![(1, 0.9), (0, 0.1)] });
    assert_eq!(verdict(&page), "That is: Trouser. Right.");
    let mut page = fixture::page();
    page.on_event(0.0, PageEvent::Drawn(vec![1]));
    page.on_event(1.0, PageEvent::PeerLost { reason: PeerLoss::of_words("out of memory") });
    assert_eq!(verdict(&page), UNANSWERED, "nobody is left to look");
}

#[test]
fn the_transport_is_shown_with_the_failures_of_the_better_ones() {
    let mut page = fixture::page();
    assert_eq!(connection_line(&page), None);
    page.peer = WorkerState::Ready { device: DeviceKind::BrowserCpu, device_name: String::new() };
    page.connection = Some((TransportKind::WebTransport, Vec::new()));
    assert_eq!(connection_line(&page).unwrap(), "Connected by WebTransport.");
    page.connection =
        Some((TransportKind::WebSocket, vec![(TransportKind::WebTransport, "no answer".into())]));
    let line = connection_line(&page).unwrap();
    assert_eq!(line, "Connected by WebSocket, as WebTransport did not work (no answer).");
    let both =
        vec![(TransportKind::WebTransport, "no answer".into()), (TransportKind::WebRtc, "closed".into())];
    page.connection = Some((TransportKind::WebSocket, both));
    let line = connection_line(&page).unwrap();
    let want =
        "Connected by WebSocket, as WebTransport did not work (no answer) and WebRTC did not work (closed).";
    assert_eq!(line, want);
    page.connection =
        Some((TransportKind::WebTransport, vec![(TransportKind::WebSocket, "no answer".into())]));
    assert_eq!(connection_line(&page).unwrap(), "Connected by WebTransport.", "what is worse is not missed");
}

#[test]
fn a_pause_is_said_once_what_is_done_is_handed_in() {
    let mut page = working(DeviceKind::BrowserCpu, Activity::Training { epoch: 1 });
    page.on_event(0.0, PageEvent::Limits(Input::TogglePause));
    assert_eq!(sentence(&page).doing, "training", "it was told to stop, and has not yet");
    page.activity = Activity::Stopping;
    assert!(sentence(&page).text.contains("then pausing"));
    page.activity = Activity::Idle;
    let found = sentence(&page);
    assert_eq!((found.doing, found.is_routine), ("paused", false));
    assert!(found.text.starts_with("Paused by you"));
    page.peer = WorkerState::Absent;
    assert_eq!(sentence(&page).doing, "paused");
    // After Stop the tab rests.
    page.contributing = false;
    assert_eq!(sentence(&page).doing, "idle");
}

#[test]
fn a_throttled_tab_says_so() {
    let mut page = working(DeviceKind::BrowserCpu, Activity::Training { epoch: 1 });
    assert!(sentence(&page).text.ends_with("on the processor."));
    page.on_event(0.0, PageEvent::Limits(Input::Set(Change::Duty(20))));
    assert!(sentence(&page).text.ends_with("on the processor, 20 % of the time."));
}

#[test]
fn a_crash_is_said_with_what_follows_from_it() {
    let mut page = working(DeviceKind::BrowserCpu, Activity::Training { epoch: 3 });
    page.on_event(0.0, PageEvent::PeerLost { reason: PeerLoss::of_words("out of memory") });
    let found = sentence(&page);
    assert_eq!((found.doing, found.text.contains("in a moment")), ("reviving", true), "{found:?}");
    for now_ms in [1.0, 2.0] {
        page.peer = WorkerState::Ready { device: DeviceKind::BrowserCpu, device_name: String::new() };
        page.on_event(now_ms, PageEvent::PeerLost { reason: PeerLoss::of_words("out of memory") });
    }
    let found = sentence(&page);
    assert_eq!((found.doing, found.text.contains("close other tabs")), ("broken", true), "{found:?}");
}

#[test]
fn a_device_without_a_network_is_not_told_that_the_backbone_is_away() {
    let mut page = fixture::page();
    page.backbone = BackboneStatus::Lost { reason: AnswerError::NoAnswer.into(), retry_in_ms: 1000 };
    assert!(sentence(&page).text.contains("The backbone cannot be reached"));
    page.on_event(0.0, PageEvent::Network { is_online: false });
    let found = sentence(&page);
    assert_eq!((found.doing, found.text.contains("no network")), ("unreachable", true), "{found:?}");
}

#[test]
fn the_reason_of_a_lost_connection_is_a_detail() {
    let reason = Interruption::other("no /barnraise/state/1 stream: failed to open stream: io error");
    let mut page = working(DeviceKind::BrowserCpu, Activity::Reconnecting { retry_in_ms: 1000, reason });
    page.connection = Some((TransportKind::WebTransport, Vec::new()));
    assert_eq!(sentence(&page).text, "No connection to the backbone. Trying again in a moment.");
    assert_eq!(connection_line(&page), None, "it is not connected");
    page.on_event(0.0, PageEvent::Network { is_online: false });
    assert!(sentence(&page).text.starts_with("This device has no network."));
}

#[test]
fn a_backbone_that_refuses_is_not_said_to_be_out_of_reach() {
    let retry_in_ms = 1000;
    let uninvited = Activity::Reconnecting { retry_in_ms, reason: Interruption::NoInvitation };
    let said = sentence(&working(DeviceKind::BrowserCpu, uninvited));
    assert!(said.text.contains("Not let in yet: this run is by invitation"), "{said:?}");
    let reason = Refusal::Full { n_contributors: 7 }.into();
    let full = Activity::Reconnecting { retry_in_ms, reason };
    let said = sentence(&working(DeviceKind::BrowserCpu, full));
    assert!(said.text.contains("7 contributors") && said.text.ends_with("in a moment."), "{said:?}");
    assert!(!said.spoken.contains("moment"), "{said:?}");
}

#[test]
fn a_run_that_is_gone_is_not_waited_for() {
    let mut page = fixture::page();
    page.backbone = BackboneStatus::Lost { reason: AnswerError::Status(404).into(), retry_in_ms: 1000 };
    assert!(sentence(&page).text.contains("not at this address any more"));
}

#[test]
fn what_a_run_asks_for_is_said_before_the_click() {
    let mut page = fixture::page();
    assert_eq!(invitation_line(&page), None);
    if let Some(run) = &mut page.run {
        run.access.mode = AccessMode::Invitation;
    }
    assert!(invitation_line(&page).unwrap().contains("by invitation"));
    assert!(access_line(&page).contains("by invitation"));
    let page = page.invited_by(Some("code".into()));
    assert!(invitation_line(&page).unwrap().starts_with("You came with an invitation"));
}

#[test]
fn an_answer_of_a_cached_model_says_that_it_is_one() {
    let mut page = fixture::page();
    page.backbone = BackboneStatus::Live;
    assert_eq!(which_model(&page, 12), "The model after 12 steps.");
    page.backbone = BackboneStatus::Lost { reason: AnswerError::NoAnswer.into(), retry_in_ms: 1000 };
    assert!(which_model(&page, 12).starts_with("The model after 12 steps, as this browser kept it"));
}

#[test]
fn a_tab_that_waits_for_the_one_with_the_work_does_not_say_that_it_rests() {
    let mut page = fixture::page().among_tabs();
    page.on_event(0.0, PageEvent::Tabs(crate::state::TabEvent::Follow));
    page.on_event(1.0, PageEvent::RunArrived(Box::new(fixture::status())));
    assert!(sentence(&page).text.starts_with("Resting"));
    page.on_event(2.0, PageEvent::Toggle);
    assert_eq!(sentence(&page).text, "About to begin…");
}

#[test]
fn only_a_tab_that_follows_says_where_the_work_is() {
    let mut page = fixture::page().among_tabs();
    assert_eq!(tabs_line(&page), None);
    page.on_event(0.0, PageEvent::Tabs(crate::state::TabEvent::Follow));
    assert!(tabs_line(&page).is_some_and(|line| line.contains("Another tab")));
}

#[test]
fn a_run_that_its_operator_paused_is_said_with_what_follows_for_a_visitor() {
    let mut page = fixture::page();
    page.backbone = BackboneStatus::Live;
    page.operator_pause = Some("the data is looked at.".into());
    let found = sentence(&page);
    assert_eq!((found.doing, found.is_routine), ("halted", false));
    assert!(found.text.starts_with("This run is paused: the data is looked at. No steps"), "{found:?}");
    let mut page = working(DeviceKind::BrowserCpu, Activity::WaitingForOthers { epoch: 3 });
    page.operator_pause = Some("new data".into());
    let found = sentence(&page);
    assert!(found.doing == "halted" && found.text.contains("It waits, and goes on by itself"), "{found:?}");
    page.activity = Activity::Sending { epoch: 3, bytes: 1, bytes_total: 2 };
    assert_eq!(sentence(&page).doing, "sending", "what it had is handed in first");
    page.activity = Activity::WaitingForOthers { epoch: 3 };
    page.operator_pause = None;
    assert_eq!(sentence(&page).doing, "waiting-for-others");
}

#[test]
fn a_tab_of_a_run_without_a_server_says_its_round_and_why_it_waits() {
    let turn = |n_trainers| Activity::WaitingForTurn { round: 12, n_trainers, sample_size: 3 };
    for (activity, says) in [
        (
            Activity::Training { epoch: 12 },
            "In the sample of round 12: learning from pictures on the processor.",
        ),
        (
            Activity::WaitingForOthers { epoch: 12 },
            "Handed in for round 12. Waiting for the others to finish theirs.",
        ),
        (turn(7), "drawn by chance from 7, and this tab is not among those of round 12."),
        (turn(3), "round 12 is under way with those who were there before this tab."),
    ] {
        let mut page = working(DeviceKind::BrowserCpu, activity);
        page.run = fixture::sampled_page().run;
        let text = sentence(&page).text;
        assert!(text.ends_with(says), "{text}");
    }
}
