#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_messages::{ContributorEvent, Interruption, PeerToPage};
use barnraise_protocol::error::OlderThanRun;
use barnraise_protocol::run;

use super::*;
use crate::fixture;
use crate::limits::{Input, PauseReason};

fn ready(device: DeviceKind) -> PageEvent {
    PageEvent::FromPeer(PeerToPage::Ready {
        identity: vec![7; 32],
        peer_id: "12D3".into(),
        device,
        device_name: String::new(),
    })
}

fn at_work(device: DeviceKind) -> PageState {
    let mut page = fixture::page();
    page.on_event(0.0, PageEvent::Toggle);
    page.on_event(0.0, ready(device));
    page
}

fn lost(reason: &str) -> PageEvent {
    PageEvent::PeerLost { reason: PeerLoss::of_words(reason) }
}

#[test]
fn a_worker_that_crashed_is_restarted_twice_and_then_the_page_says_so() {
    let mut page = at_work(DeviceKind::BrowserCpu);
    for delay_ms in REVIVE_AFTER_MS {
        let crashed = page.on_event(1.0, lost("RuntimeError: unreachable"));
        assert_eq!(crashed, [PageAction::EndPeer, PageAction::ReviveIn { delay_ms }]);
        assert!(page.contributing && page.endurance.reviving.is_some() && page.trouble.is_none());
        assert_eq!(page.on_event(2.0, PageEvent::Revive)[0], PageAction::SpawnPeer);
        assert_eq!(page.endurance.reviving, None);
        let actions = page.on_event(3.0, ready(DeviceKind::BrowserCpu));
        assert!(actions.contains(&PageAction::Post(PageToPeer::Start)), "{actions:?}");
    }
    assert_eq!(page.on_event(4.0, lost("RangeError: Array buffer allocation failed")), [PageAction::EndPeer]);
    assert!(!page.contributing && page.trouble.as_ref().unwrap().is_of_memory());
}

/// What the looks do that follow one another, while `bytes` of the program are here.
fn looks(page: &mut PageState, n_looks: u32, bytes: u64) -> Vec<PageAction> {
    let loading = PeerToPage::Loading { bytes, bytes_total: Some(100) };
    page.on_event(1.0, PageEvent::FromPeer(loading));
    let look = |_| page.on_event(2.0, PageEvent::LookAtLoading);
    let actions: Vec<PageAction> = (0..n_looks).flat_map(look).collect();
    let again = PageAction::LookAtLoadingIn { delay_ms: LOOK_AFTER_MS };
    actions.into_iter().filter(|action| *action != again).collect()
}

#[test]
fn a_worker_whose_program_does_not_come_is_replaced_and_at_last_the_page_says_so() {
    let mut page = fixture::page();
    let begun = page.on_event(0.0, PageEvent::Toggle);
    assert!(begun.contains(&PageAction::LookAtLoadingIn { delay_ms: LOOK_AFTER_MS }));
    // However slowly it comes.
    for bytes in 1..20 {
        assert_eq!(looks(&mut page, LOOKS_MAX - 1, bytes), []);
    }
    for _ in 0..STALLS_MAX {
        let replaced = looks(&mut page, LOOKS_MAX + 1, 20);
        assert_eq!(replaced[..2], [PageAction::EndPeer, PageAction::SpawnPeer]);
        assert!(page.loads_for_work && page.trouble.is_none());
    }
    assert_eq!(looks(&mut page, LOOKS_MAX + 1, 20), [PageAction::EndPeer]);
    assert!(!page.contributing && page.trouble.is_some());
    // Start tries it anew.
    let begun = page.on_event(3.0, PageEvent::Toggle);
    assert!(begun.contains(&PageAction::LookAtLoadingIn { delay_ms: LOOK_AFTER_MS }));
    assert_eq!(looks(&mut page, LOOKS_MAX + 1, 20)[..2], [PageAction::EndPeer, PageAction::SpawnPeer]);
    // A device that compiles it, or has no network, is given time.
    assert_eq!(looks(&mut page, 100, 100), []);
    page.on_event(4.0, PageEvent::Network { is_online: false });
    assert_eq!(looks(&mut page, 100, 30), []);
    page.on_event(5.0, ready(DeviceKind::BrowserCpu));
    assert_eq!(page.on_event(6.0, PageEvent::LookAtLoading), [], "it is here");
}

/// Size of a pass that is posted to the worker once it is ready.
fn told_size(page: &mut PageState, device: DeviceKind) -> Option<u32> {
    let actions = page.on_event(3.0, ready(device));
    let start = actions.iter().position(|action| *action == PageAction::Post(PageToPeer::Start)).unwrap();
    actions[..start].iter().find_map(|action| match action {
        PageAction::Post(PageToPeer::Pacing(pacing)) => pacing.pass_samples_max,
        _ => None,
    })
}

#[test]
fn a_tab_that_ran_out_of_memory_goes_on_with_less_at_a_time_and_says_so() {
    let panicked = Activity::Broken {
        reason: Interruption::Panicked { detail: "memory allocation of 640000 bytes failed".into() },
    };
    let told = PageEvent::FromPeer(PeerToPage::Event(ContributorEvent::Activity(panicked)));
    // By the browser's message, by the program's last message, and without one.
    for (before, reason) in [
        (None, "RangeError: Array buffer allocation failed"),
        (Some(told), "Uncaught RuntimeError: unreachable"),
        (None, "Uncaught RuntimeError: unreachable"),
    ] {
        for device in [DeviceKind::BrowserCpu, DeviceKind::BrowserWebGpu] {
            let mut page = at_work(device);
            for (n_samples, words) in [(16, "16 samples at a time"), (4, "4 samples at a time")] {
                if let Some(event) = &before {
                    page.on_event(1.0, event.clone());
                }
                let crashed = page.on_event(1.0, lost(reason));
                assert!(
                    matches!(crashed[..], [PageAction::EndPeer, PageAction::ReviveIn { .. }]),
                    "{crashed:?}"
                );
                assert!(page.notice.as_ref().unwrap().contains(words), "{:?}", page.notice);
                page.on_event(2.0, PageEvent::Revive);
                assert_eq!(told_size(&mut page, device), Some(n_samples));
            }
            // The visitor is asked, and what is started then is smaller still.
            page.on_event(4.0, lost(reason));
            assert!(!page.contributing);
            page.on_event(5.0, PageEvent::Toggle);
            assert_eq!(told_size(&mut page, device), Some(1));
        }
    }
}

#[test]
fn passes_are_not_cut_where_they_cannot_be_or_without_an_out_of_memory_crash() {
    let mut page = at_work(DeviceKind::BrowserCpu);
    page.on_event(1.0, lost("RuntimeError: index out of bounds"));
    page.on_event(2.0, PageEvent::Revive);
    assert_eq!((told_size(&mut page, DeviceKind::BrowserCpu), &page.notice), (None, &None));
    // Its micro-batches are whole or no micro-batches.
    let mut page = fixture::swav_page();
    page.on_event(0.0, PageEvent::Toggle);
    page.on_event(0.0, ready(DeviceKind::BrowserCpu));
    page.on_event(1.0, lost("out of memory"));
    page.on_event(2.0, PageEvent::Revive);
    assert_eq!((told_size(&mut page, DeviceKind::BrowserCpu), &page.notice), (None, &None));
}

#[test]
fn crashes_of_another_hour_are_forgiven() {
    let mut page = at_work(DeviceKind::BrowserCpu);
    for hour in 0..4 {
        let now_ms = 3_600_000.0 * f64::from(hour);
        let crashed = page.on_event(now_ms, lost("unreachable"));
        assert_eq!(crashed[1], PageAction::ReviveIn { delay_ms: REVIVE_AFTER_MS[0] });
        page.on_event(now_ms, PageEvent::Revive);
        page.on_event(now_ms, ready(DeviceKind::BrowserCpu));
    }
}

#[test]
fn a_tab_that_is_stopped_in_the_meantime_is_not_restarted() {
    let mut page = at_work(DeviceKind::BrowserCpu);
    page.on_event(1.0, lost("unreachable"));
    page.on_event(2.0, PageEvent::Toggle);
    assert!(!page.contributing && page.endurance.reviving.is_none());
    assert_eq!(page.on_event(3.0, PageEvent::Revive), []);
    // Nor is a worker that only answered questions.
    let mut page = fixture::page();
    page.on_event(0.0, PageEvent::LoadModel);
    page.on_event(0.0, ready(DeviceKind::BrowserCpu));
    assert_eq!(page.on_event(1.0, lost("unreachable")), [PageAction::EndPeer]);
    assert_eq!(page.trouble, Some(PeerLoss::of_words("unreachable")));
}

#[test]
fn the_contribution_of_a_tab_outlives_its_worker() {
    let mut page = at_work(DeviceKind::BrowserCpu);
    let told = |n: u64| {
        let contribution = Contribution {
            n_samples_accepted: 64 * n,
            n_accepted: n,
            bytes_up: 10 * n,
            refusals: vec![RefusalCount { reason: "epoch".into(), n }],
            ..Contribution::default()
        };
        PageEvent::FromPeer(PeerToPage::Event(ContributorEvent::Contribution(contribution)))
    };
    page.on_event(1.0, told(3));
    page.on_event(2.0, lost("unreachable"));
    page.on_event(3.0, PageEvent::Revive);
    page.on_event(4.0, ready(DeviceKind::BrowserCpu));
    page.on_event(5.0, told(0));
    page.on_event(6.0, told(2));
    let given = &page.contribution;
    assert_eq!((given.n_samples_accepted, given.n_accepted, given.bytes_up), (5 * 64, 5, 50));
    assert_eq!(given.refusals, [RefusalCount { reason: "epoch".into(), n: 5 }]);
}

#[test]
fn a_lost_graphics_processor_is_tried_again_later_and_not_for_ever() {
    let mut page = at_work(DeviceKind::BrowserWebGpu);
    let change = || {
        PageEvent::FromPeer(PeerToPage::Event(ContributorEvent::DeviceChanged {
            device: DeviceKind::BrowserCpu,
            device_name: "CPU".into(),
            reason: DeviceChange::Lost { detail: "reset".into() },
        }))
    };
    for delay_ms in TRY_GRAPHICS_AFTER_MS {
        assert_eq!(page.on_event(1.0, change()), [PageAction::TryGraphicsIn { delay_ms }]);
        let actions = page.on_event(2.0, PageEvent::TryGraphics);
        assert_eq!(actions[..2], [PageAction::EndPeer, PageAction::SpawnPeer]);
        let Some(PageAction::Post(PageToPeer::Hello { device, .. })) = actions.last() else {
            panic!("{actions:?}")
        };
        assert_eq!(*device, DeviceChoice::Auto);
        assert!(page.contributing && page.device_change.is_none());
        page.on_event(3.0, ready(DeviceKind::BrowserWebGpu));
    }
    assert_eq!(page.on_event(4.0, change()), []);
    assert_eq!(page.on_event(5.0, PageEvent::TryGraphics), []);
}

#[test]
fn a_paused_tab_tries_its_graphics_processor_once_it_goes_on() {
    let mut page = at_work(DeviceKind::BrowserWebGpu);
    let change = PeerToPage::Event(ContributorEvent::DeviceChanged {
        device: DeviceKind::BrowserCpu,
        device_name: "CPU".into(),
        reason: DeviceChange::Lost { detail: "reset".into() },
    });
    page.on_event(1.0, PageEvent::FromPeer(change));
    let pause = || PageEvent::Limits(Input::TogglePause);
    assert_eq!(page.on_event(2.0, pause()), [PageAction::Post(PageToPeer::Stop)]);
    assert_eq!(page.on_event(3.0, PageEvent::TryGraphics), [PageAction::EndPeer]);
    assert_eq!(page.pause(), Some(PauseReason::Visitor));
    assert_eq!(page.on_event(4.0, pause())[0], PageAction::SpawnPeer);
}

#[test]
fn a_processor_that_was_slower_or_asked_for_is_left_alone() {
    let mut page = at_work(DeviceKind::BrowserWebGpu);
    let slower = PeerToPage::Event(ContributorEvent::DeviceChanged {
        device: DeviceKind::BrowserCpu,
        device_name: "CPU".into(),
        reason: DeviceChange::Slower,
    });
    assert_eq!(page.on_event(1.0, PageEvent::FromPeer(slower)), []);
    assert_eq!(page.on_event(2.0, PageEvent::TryGraphics), []);
}

#[test]
fn a_tab_that_wakes_up_asks_at_once() {
    let mut page = at_work(DeviceKind::BrowserCpu);
    assert_eq!(
        page.on_event(1.0, PageEvent::Woke),
        [PageAction::AskAgain, PageAction::Post(PageToPeer::Woke)]
    );
    page.on_event(2.0, PageEvent::RunArrived(Box::new(fixture::status())));
    assert_eq!(
        page.on_event(3.0, PageEvent::Woke),
        [PageAction::Post(PageToPeer::Woke)],
        "it was just heard of"
    );
    let long = HEARD_WITHIN_MS + 3.0;
    assert_eq!(page.on_event(long, PageEvent::Woke)[0], PageAction::AskAgain);
}

#[test]
fn a_device_without_a_network_says_so_and_goes_on_when_there_is_one() {
    let mut page = at_work(DeviceKind::BrowserCpu);
    assert_eq!(page.on_event(1.0, PageEvent::Network { is_online: false }), []);
    assert!(page.endurance.is_offline);
    let actions = page.on_event(2.0, PageEvent::Network { is_online: true });
    assert!(actions.contains(&PageAction::AskAgain) && !page.endurance.is_offline);
    page.on_event(3.0, PageEvent::RunArrived(Box::new(fixture::status())));
    assert_eq!(
        page.on_event(4.0, PageEvent::Network { is_online: false }),
        [PageAction::AskAgain],
        "it may hang"
    );
}

#[test]
fn a_tab_whose_program_the_server_no_longer_has_goes_on_in_the_new_page() {
    // The message of `worker.js`.
    let script = include_str!("../../../../../web/worker.js");
    assert!(script.contains(r#"{ type: "outdated" }"#));
    let gone = || PageEvent::FromPeer(PeerToPage::Outdated);
    let mut page = fixture::page();
    page.on_event(0.0, PageEvent::Toggle);
    assert_eq!(page.on_event(1.0, gone()), [PageAction::EndPeer, PageAction::Reload]);
    assert!(page.contributing, "as is noted for the page that comes");
    // A visitor who only tries the model is informed, and not interrupted.
    let mut page = fixture::page();
    page.on_event(0.0, PageEvent::LoadModel);
    assert_eq!(page.on_event(1.0, gone()), [PageAction::EndPeer]);
    assert_eq!(page.trouble, Some(PeerLoss::Outdated));
}

/// A backbone that was updated while the tab computed tells its worker; the page is up to date after one reload.
#[test]
fn a_tab_that_is_older_than_its_run_says_so_and_goes_on_in_the_new_page() {
    let versions = OlderThanRun { ours: run::PROTOCOL.to_owned(), theirs: "/barnraise/run/999".into() };
    let reason = Interruption::OlderThanRun(versions);
    let told = |activity| PageEvent::FromPeer(PeerToPage::Event(ContributorEvent::Activity(activity)));
    let mut page = at_work(DeviceKind::BrowserCpu);
    let broken = told(Activity::Broken { reason: reason.clone() });
    assert_eq!(page.on_event(1.0, broken.clone()), [PageAction::EndPeer, PageAction::Reload]);
    assert!(page.contributing, "as is noted for the page that comes");
    assert!(page.endurance.has_new_version);
    // Another backbone of the run may be of this page's version still: nobody is interrupted.
    let mut page = at_work(DeviceKind::BrowserCpu);
    let away = told(Activity::Reconnecting { retry_in_ms: 400, reason: reason.clone() });
    assert!(!page.on_event(1.0, away).contains(&PageAction::Reload));
    assert!(page.endurance.has_new_version, "the new page is offered");
    let details: Vec<String> = crate::report::transports(&page).into_iter().map(|line| line.text).collect();
    let said = details.join(" ");
    assert!(said.contains("/barnraise/run/999") && said.contains(run::PROTOCOL), "{said}");
    // A tab that does not contribute shows the notice.
    let mut page = fixture::page();
    assert_eq!(page.on_event(1.0, broken), []);
    assert!(!page.contributing && page.endurance.has_new_version);
}

#[test]
fn a_new_version_is_taken_while_nobody_looks_and_nothing_is_done() {
    let mut page = fixture::page();
    assert_eq!(page.on_event(0.0, PageEvent::Hidden), []);
    assert_eq!(page.on_event(1.0, PageEvent::NewVersion { is_hidden: false }), []);
    assert!(page.endurance.has_new_version);
    assert_eq!(page.on_event(2.0, PageEvent::Hidden), [PageAction::Reload]);
    let mut page = at_work(DeviceKind::BrowserCpu);
    assert_eq!(page.on_event(1.0, PageEvent::NewVersion { is_hidden: true }), []);
    assert_eq!(page.on_event(2.0, PageEvent::Reload), [PageAction::Reload], "the visitor may");
}
