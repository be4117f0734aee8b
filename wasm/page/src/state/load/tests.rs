#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_messages::{ContributorEvent, PageToPeer, PeerToPage};
use barnraise_protocol::contribute::DeviceKind;

use super::*;
use crate::fixture;
use crate::limits::Input;
use crate::state::{PageEvent, TabEvent, TabMessage};

fn load(event: LoadEvent) -> PageEvent {
    PageEvent::Tabs(TabEvent::Load(event))
}

fn holder(run: &str) -> LockHolder {
    LockHolder { origin: format!("http://127.0.0.1:4000/run/{run}"), title: Some(format!("The {run}")) }
}

/// The stored form, for tabs of any build.
#[test]
fn golden_text_of_who_computes() {
    let golden = r#"{"origin":"http://127.0.0.1:4000/run/barn","title":"The barn"}"#;
    assert_eq!(serde_json::to_string(&holder("barn")).unwrap(), golden);
    assert_eq!(serde_json::from_str::<LockHolder>(golden).unwrap(), holder("barn"));
}

/// The actions, without messages to other tabs.
fn acts(page: &mut PageState, now_ms: f64, event: PageEvent) -> Vec<PageAction> {
    let actions = page.on_event(now_ms, event);
    actions.into_iter().filter(|action| !matches!(action, PageAction::Broadcast(_))).collect()
}

/// The leader of a run's tabs.
fn leader(run: &str) -> PageState {
    let mut page = fixture::page().among_tabs();
    let LockHolder { origin, title } = holder(run);
    page.origin = origin;
    page.run.as_mut().unwrap().identity.title = title.unwrap();
    page.on_event(0.0, PageEvent::Tabs(TabEvent::Lead { identity: None, transport: None }));
    page
}

/// A tab that was started while a tab of another run held the lock.
fn waiting() -> PageState {
    let mut page = leader("shed");
    assert_eq!(acts(&mut page, 1.0, PageEvent::Toggle), [PageAction::RequestLock]);
    assert_eq!(acts(&mut page, 1.0, load(LoadEvent::Elsewhere(Some(holder("barn"))))), []);
    page
}

/// A tab that computes.
fn at_work(run: &str) -> PageState {
    let mut page = leader(run);
    page.on_event(1.0, PageEvent::Toggle);
    page.on_event(1.0, load(LoadEvent::Granted));
    let ready = PeerToPage::Ready {
        identity: vec![7; 32],
        peer_id: "12D3".into(),
        device: DeviceKind::BrowserCpu,
        device_name: String::new(),
    };
    let actions = acts(&mut page, 2.0, PageEvent::FromPeer(ready));
    assert!(actions.contains(&PageAction::Post(PageToPeer::Start)), "{actions:?}");
    page
}

#[test]
fn a_tab_computes_once_it_has_the_lock_and_releases_it_when_it_stops() {
    let mut page = leader("barn");
    assert_eq!(acts(&mut page, 1.0, PageEvent::Toggle), [PageAction::RequestLock]);
    let actions = acts(&mut page, 1.0, load(LoadEvent::Granted));
    assert_eq!(actions[..2], [PageAction::StoreHolder(holder("barn")), PageAction::SpawnPeer]);
    assert!(page.pause().is_none());
    assert_eq!(acts(&mut page, 2.0, PageEvent::Toggle), [PageAction::ReleaseLock]);
    // Nor is it kept where it comes too late.
    assert_eq!(acts(&mut page, 3.0, PageEvent::Toggle), [PageAction::RequestLock]);
    assert_eq!(acts(&mut page, 3.0, PageEvent::Toggle), [PageAction::ReleaseLock]);
    assert_eq!(acts(&mut page, 3.0, load(LoadEvent::Granted)), [PageAction::ReleaseLock]);
}

#[test]
fn a_tab_of_another_run_waits_for_its_turn_and_says_which_run_has_it() {
    let mut page = waiting();
    assert!(page.contributing && page.pause() == Some(PauseReason::Elsewhere));
    assert_eq!(page.elsewhere(), Some("The barn"));
    // Another one took it meanwhile.
    page.on_event(2.0, load(LoadEvent::Noted(holder("mill"))));
    assert_eq!(page.elsewhere(), Some("The mill"));
    assert!(acts(&mut page, 3.0, load(LoadEvent::Granted)).contains(&PageAction::SpawnPeer));
    assert_eq!((page.pause(), page.elsewhere()), (None, None));
}

#[test]
fn a_tab_that_stops_waiting_does_not_begin_in_its_turn() {
    let mut page = waiting();
    assert_eq!(acts(&mut page, 2.0, PageEvent::Toggle), [PageAction::ReleaseLock]);
    assert_eq!(page.elsewhere(), None);
    assert_eq!(acts(&mut page, 3.0, load(LoadEvent::Granted)), [PageAction::ReleaseLock]);
    assert!(!page.contributing);
}

#[test]
fn a_visitor_takes_it_over_and_the_other_tab_stops_and_says_why() {
    let mut page = waiting();
    let taking = [PageAction::StoreHolder(holder("shed")), PageAction::TakeLoad];
    assert_eq!(
        acts(&mut page, 2.0, PageEvent::TakeLoad),
        taking,
        "the new holder is stored before the lock is taken"
    );
    assert_eq!(acts(&mut page, 2.0, PageEvent::TakeLoad), [], "once");
    assert!(acts(&mut page, 3.0, load(LoadEvent::Granted)).contains(&PageAction::SpawnPeer));

    let mut other = at_work("barn");
    let actions = acts(&mut other, 3.0, load(LoadEvent::Taken(Some(holder("shed")))));
    assert_eq!(actions, [PageAction::Post(PageToPeer::Stop)], "what is finished is handed in");
    assert!(!other.contributing && other.notice.as_ref().unwrap().contains("to The shed instead"));
    // What it cannot read it does not name.
    let mut other = at_work("barn");
    other.on_event(3.0, load(LoadEvent::Taken(Some(holder("barn")))));
    assert!(other.notice.as_ref().unwrap().contains("another run"));
    // Until it can.
    other.on_event(3.0, load(LoadEvent::Noted(holder("shed"))));
    assert!(other.notice.as_ref().unwrap().contains("to The shed instead"));
    // Started again, it asks as any other does.
    assert_eq!(acts(&mut other, 4.0, PageEvent::Toggle), [PageAction::RequestLock]);
    other.on_event(4.0, load(LoadEvent::Noted(holder("mill"))));
    assert_eq!(other.notice, None);
}

#[test]
fn nothing_is_taken_that_is_not_waited_for() {
    for mut page in [leader("barn"), at_work("barn"), fixture::page()] {
        assert_eq!(acts(&mut page, 3.0, PageEvent::TakeLoad), []);
    }
}

#[test]
fn a_tab_that_pauses_lets_others_compute_unless_the_device_is_hot() {
    let mut page = at_work("barn");
    let paused = acts(&mut page, 3.0, PageEvent::Limits(Input::TogglePause));
    assert_eq!(paused, [PageAction::ReleaseLock, PageAction::Post(PageToPeer::Stop)]);
    assert_eq!(acts(&mut page, 4.0, PageEvent::Limits(Input::TogglePause)), [PageAction::RequestLock]);
    page.on_event(4.0, load(LoadEvent::Elsewhere(Some(holder("shed")))));
    assert_eq!(page.pause(), Some(PauseReason::Elsewhere));

    let mut page = at_work("barn");
    let heeds = Input::Set(crate::limits::Change::HeedsHeat(true));
    page.on_event(3.0, PageEvent::Limits(heeds));
    let mut all = Vec::new();
    for pass in 0..200_u32 {
        let milliseconds = if pass < 50 { 16.0 } else { 64.0 };
        let contribution = barnraise_messages::Contribution {
            pass: Some(barnraise_messages::PassTime { n_samples: 16, milliseconds }),
            ..Default::default()
        };
        let told = PeerToPage::Event(ContributorEvent::Contribution(contribution));
        all.extend(acts(&mut page, f64::from(pass) * 200.0, PageEvent::FromPeer(told)));
    }
    assert!(
        matches!(page.pause(), Some(PauseReason::Hot { .. }))
            && all.contains(&PageAction::Post(PageToPeer::Stop))
    );
    assert!(!all.contains(&PageAction::ReleaseLock), "{all:?}");
}

#[test]
fn the_lock_of_a_closed_leader_of_the_same_run_is_taken_at_once() {
    let mut page = leader("barn");
    page.on_event(1.0, PageEvent::Toggle);
    let gone = acts(&mut page, 1.0, load(LoadEvent::Elsewhere(Some(holder("barn")))));
    assert_eq!(gone, [PageAction::StoreHolder(holder("barn")), PageAction::TakeLoad]);
    // And a leader that lost the lead has nothing to compute for.
    let mut page = at_work("barn");
    let actions = acts(&mut page, 3.0, PageEvent::Tabs(TabEvent::Deposed));
    assert!(
        actions.contains(&PageAction::EndPeer) && actions.contains(&PageAction::ReleaseLock),
        "{actions:?}"
    );
    assert_eq!(acts(&mut page, 3.0, load(LoadEvent::Taken(None))), []);
}

#[test]
fn a_follower_says_what_its_leader_waits_for_and_takes_over_through_it() {
    let mut first = leader("shed");
    let mut second = fixture::page().among_tabs();
    second.on_event(0.0, PageEvent::Tabs(TabEvent::Follow));
    let heard = |message: TabMessage| PageEvent::Tabs(TabEvent::Received(message));
    // Of what one tab does, what it tells the other one.
    let told = |actions: Vec<PageAction>| -> Vec<TabMessage> {
        let message = |action| if let PageAction::Broadcast(message) = action { Some(message) } else { None };
        actions.into_iter().filter_map(message).collect()
    };
    let pass = |first: &mut PageState, second: &mut PageState, event: PageEvent| {
        let mut all = Vec::new();
        let actions = first.on_event(1.0, event);
        all.extend(actions.iter().filter(|action| !matches!(action, PageAction::Broadcast(_))).cloned());
        for message in told(actions) {
            second.on_event(1.0, heard(message));
        }
        all
    };
    assert_eq!(pass(&mut first, &mut second, heard(TabMessage::Contribute(true))), [PageAction::RequestLock]);
    pass(&mut first, &mut second, load(LoadEvent::Elsewhere(Some(holder("barn")))));
    assert_eq!((second.pause(), second.elsewhere()), (Some(PauseReason::Elsewhere), Some("The barn")));
    let wish = second.on_event(2.0, PageEvent::TakeLoad);
    assert!(wish.contains(&PageAction::Broadcast(TabMessage::TakeLoad)), "{wish:?}");
    let taking = pass(&mut first, &mut second, heard(TabMessage::TakeLoad));
    assert_eq!(taking, [PageAction::StoreHolder(holder("shed")), PageAction::TakeLoad]);
    pass(&mut first, &mut second, load(LoadEvent::Granted));
    assert_eq!((second.pause(), second.elsewhere()), (None, None));
    assert!(second.contributing);
}
