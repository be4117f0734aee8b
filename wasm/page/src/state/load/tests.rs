#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_messages::{Event as Told, PageToPeer, PeerToPage};
use barnraise_protocol::contribute::DeviceKind;

use super::*;
use crate::conduct::Input;
use crate::fixture;
use crate::state::{Event, TabEvent, TabMessage};

fn load(event: LoadEvent) -> Event {
    Event::Tabs(TabEvent::Load(event))
}

fn bearer(run: &str) -> Bearer {
    Bearer { origin: format!("http://127.0.0.1:4000/run/{run}"), title: Some(format!("The {run}")) }
}

/// As it is written down for tabs of any build.
#[test]
fn golden_text_of_who_computes() {
    let golden = r#"{"origin":"http://127.0.0.1:4000/run/barn","title":"The barn"}"#;
    assert_eq!(serde_json::to_string(&bearer("barn")).unwrap(), golden);
    assert_eq!(serde_json::from_str::<Bearer>(golden).unwrap(), bearer("barn"));
}

/// What follows, but for what other tabs are told.
fn acts(page: &mut Page, now_ms: f64, event: Event) -> Vec<Action> {
    let actions = page.on_event(now_ms, event);
    actions.into_iter().filter(|action| !matches!(action, Action::Tell(_))).collect()
}

/// The tab that leads those of a run.
fn leader(run: &str) -> Page {
    let mut page = fixture::page().among_tabs();
    let Bearer { origin, title } = bearer(run);
    page.origin = origin;
    page.run.as_mut().unwrap().title = title.unwrap();
    page.on_event(0.0, Event::Tabs(TabEvent::Lead { identity: None, way: None }));
    page
}

/// One whose button was pressed while another run's tab had the load.
fn waiting() -> Page {
    let mut page = leader("shed");
    assert_eq!(acts(&mut page, 1.0, Event::Toggle), [Action::AskLoad]);
    assert_eq!(acts(&mut page, 1.0, load(LoadEvent::Elsewhere(Some(bearer("barn"))))), []);
    page
}

/// One that computes.
fn at_work(run: &str) -> Page {
    let mut page = leader(run);
    page.on_event(1.0, Event::Toggle);
    page.on_event(1.0, load(LoadEvent::Granted));
    let ready = PeerToPage::Ready {
        identity: vec![7; 32],
        peer_id: "12D3".into(),
        device: DeviceKind::BrowserCpu,
        device_name: String::new(),
    };
    let actions = acts(&mut page, 2.0, Event::FromPeer(ready));
    assert!(actions.contains(&Action::Post(PageToPeer::Start)), "{actions:?}");
    page
}

#[test]
fn a_tab_computes_once_it_has_the_load_and_leaves_it_when_it_stops() {
    let mut page = leader("barn");
    assert_eq!(acts(&mut page, 1.0, Event::Toggle), [Action::AskLoad]);
    let actions = acts(&mut page, 1.0, load(LoadEvent::Granted));
    assert_eq!(actions[..2], [Action::NoteLoad(bearer("barn")), Action::SpawnPeer]);
    assert!(page.pause().is_none());
    assert_eq!(acts(&mut page, 2.0, Event::Toggle), [Action::LeaveLoad]);
    // Nor is it kept where it comes too late.
    assert_eq!(acts(&mut page, 3.0, Event::Toggle), [Action::AskLoad]);
    assert_eq!(acts(&mut page, 3.0, Event::Toggle), [Action::LeaveLoad]);
    assert_eq!(acts(&mut page, 3.0, load(LoadEvent::Granted)), [Action::LeaveLoad]);
}

#[test]
fn a_tab_of_another_run_waits_for_its_turn_and_says_which_run_has_it() {
    let mut page = waiting();
    assert!(page.contributing && page.pause() == Some(Reason::Elsewhere));
    assert_eq!(page.elsewhere(), Some("The barn"));
    // Another one took it meanwhile.
    page.on_event(2.0, load(LoadEvent::Noted(bearer("mill"))));
    assert_eq!(page.elsewhere(), Some("The mill"));
    assert!(acts(&mut page, 3.0, load(LoadEvent::Granted)).contains(&Action::SpawnPeer));
    assert_eq!((page.pause(), page.elsewhere()), (None, None));
}

#[test]
fn whoever_stops_waiting_does_not_begin_in_its_turn() {
    let mut page = waiting();
    assert_eq!(acts(&mut page, 2.0, Event::Toggle), [Action::LeaveLoad]);
    assert_eq!(page.elsewhere(), None);
    assert_eq!(acts(&mut page, 3.0, load(LoadEvent::Granted)), [Action::LeaveLoad]);
    assert!(!page.contributing);
}

#[test]
fn a_visitor_takes_it_over_and_the_other_tab_stops_and_says_why() {
    let mut page = waiting();
    let taking = [Action::NoteLoad(bearer("shed")), Action::TakeLoad];
    assert_eq!(acts(&mut page, 2.0, Event::TakeLoad), taking, "whoever loses it reads who has it");
    assert_eq!(acts(&mut page, 2.0, Event::TakeLoad), [], "once");
    assert!(acts(&mut page, 3.0, load(LoadEvent::Granted)).contains(&Action::SpawnPeer));

    let mut other = at_work("barn");
    let actions = acts(&mut other, 3.0, load(LoadEvent::Taken(Some(bearer("shed")))));
    assert_eq!(actions, [Action::Post(PageToPeer::Stop)], "what is finished is handed in");
    assert!(!other.contributing && other.notice.as_ref().unwrap().contains("to The shed instead"));
    // What it cannot read it does not name.
    let mut other = at_work("barn");
    other.on_event(3.0, load(LoadEvent::Taken(Some(bearer("barn")))));
    assert!(other.notice.as_ref().unwrap().contains("another run"));
    // Until it can.
    other.on_event(3.0, load(LoadEvent::Noted(bearer("shed"))));
    assert!(other.notice.as_ref().unwrap().contains("to The shed instead"));
    // Started again, it asks as any other does.
    assert_eq!(acts(&mut other, 4.0, Event::Toggle), [Action::AskLoad]);
    other.on_event(4.0, load(LoadEvent::Noted(bearer("mill"))));
    assert_eq!(other.notice, None);
}

#[test]
fn nothing_is_taken_that_is_not_waited_for() {
    for mut page in [leader("barn"), at_work("barn"), fixture::page()] {
        assert_eq!(acts(&mut page, 3.0, Event::TakeLoad), []);
    }
}

#[test]
fn a_tab_that_pauses_lets_others_compute_unless_the_device_is_hot() {
    let mut page = at_work("barn");
    let paused = acts(&mut page, 3.0, Event::Conduct(Input::TogglePause));
    assert_eq!(paused, [Action::LeaveLoad, Action::Post(PageToPeer::Stop)]);
    assert_eq!(acts(&mut page, 4.0, Event::Conduct(Input::TogglePause)), [Action::AskLoad]);
    page.on_event(4.0, load(LoadEvent::Elsewhere(Some(bearer("shed")))));
    assert_eq!(page.pause(), Some(Reason::Elsewhere));

    let mut page = at_work("barn");
    let heeds = Input::Set(crate::conduct::Change::HeedsHeat(true));
    page.on_event(3.0, Event::Conduct(heeds));
    let mut all = Vec::new();
    for pass in 0..200_u32 {
        let milliseconds = if pass < 50 { 16.0 } else { 64.0 };
        let contribution = barnraise_messages::Contribution {
            pass: Some(barnraise_messages::PassTime { n_samples: 16, milliseconds }),
            ..Default::default()
        };
        let told = PeerToPage::Told(Told::Contribution(contribution));
        all.extend(acts(&mut page, f64::from(pass) * 200.0, Event::FromPeer(told)));
    }
    assert!(
        matches!(page.pause(), Some(Reason::Hot { .. })) && all.contains(&Action::Post(PageToPeer::Stop))
    );
    assert!(!all.contains(&Action::LeaveLoad), "{all:?}");
}

#[test]
fn the_load_of_a_leader_of_the_same_run_that_is_gone_is_taken_at_once() {
    let mut page = leader("barn");
    page.on_event(1.0, Event::Toggle);
    let gone = acts(&mut page, 1.0, load(LoadEvent::Elsewhere(Some(bearer("barn")))));
    assert_eq!(gone, [Action::NoteLoad(bearer("barn")), Action::TakeLoad]);
    // And a leader that lost the lead has nothing to compute for.
    let mut page = at_work("barn");
    let actions = acts(&mut page, 3.0, Event::Tabs(TabEvent::Deposed));
    assert!(actions.contains(&Action::EndPeer) && actions.contains(&Action::LeaveLoad), "{actions:?}");
    assert_eq!(acts(&mut page, 3.0, load(LoadEvent::Taken(None))), []);
}

#[test]
fn a_follower_says_what_its_leader_waits_for_and_takes_over_through_it() {
    let mut first = leader("shed");
    let mut second = fixture::page().among_tabs();
    second.on_event(0.0, Event::Tabs(TabEvent::Follow));
    let heard = |message: TabMessage| Event::Tabs(TabEvent::Heard(message));
    // Of what one tab does, what it tells the other one.
    let told = |actions: Vec<Action>| -> Vec<TabMessage> {
        let message = |action| if let Action::Tell(message) = action { Some(message) } else { None };
        actions.into_iter().filter_map(message).collect()
    };
    let pass = |first: &mut Page, second: &mut Page, event: Event| {
        let mut all = Vec::new();
        let actions = first.on_event(1.0, event);
        all.extend(actions.iter().filter(|action| !matches!(action, Action::Tell(_))).cloned());
        for message in told(actions) {
            second.on_event(1.0, heard(message));
        }
        all
    };
    assert_eq!(pass(&mut first, &mut second, heard(TabMessage::Contribute(true))), [Action::AskLoad]);
    pass(&mut first, &mut second, load(LoadEvent::Elsewhere(Some(bearer("barn")))));
    assert_eq!((second.pause(), second.elsewhere()), (Some(Reason::Elsewhere), Some("The barn")));
    let wish = second.on_event(2.0, Event::TakeLoad);
    assert!(wish.contains(&Action::Tell(TabMessage::TakeLoad)), "{wish:?}");
    let taking = pass(&mut first, &mut second, heard(TabMessage::TakeLoad));
    assert_eq!(taking, [Action::NoteLoad(bearer("shed")), Action::TakeLoad]);
    pass(&mut first, &mut second, load(LoadEvent::Granted));
    assert_eq!((second.pause(), second.elsewhere()), (None, None));
    assert!(second.contributing);
}
