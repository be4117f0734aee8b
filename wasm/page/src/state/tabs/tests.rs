#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_messages::{Contribution, DisplayName, Interruption};
use barnraise_protocol::contribute::DeviceKind;
use barnraise_swarm::activity::ContributorEvent;

use super::*;
use crate::browser_totals::BrowserTotals;
use crate::fixture;
use crate::limits::{Change, LimitsRequest, LocalTime};
use crate::state::{LoadEvent, PeerLoss};

/// Simulated tabs of one browser, with the messages to each other and to their workers.
struct SimulatedBrowser {
    pages: Vec<PageState>,
    /// Messages of each tab to its own worker.
    posted: Vec<Vec<PageToPeer>>,
    n_workers: Vec<u32>,
    others: Vec<Vec<PageAction>>,
}

fn lead() -> PageEvent {
    PageEvent::Tabs(TabEvent::Lead { identity: Some(vec![7; 32]), transport: None })
}

fn granted() -> PageEvent {
    PageEvent::Tabs(TabEvent::Load(LoadEvent::Granted))
}

/// Actions once it leads, and holds the compute lock if it wants it.
fn leads(page: &mut PageState, now_ms: f64) -> Vec<PageAction> {
    let mut actions = page.on_event(now_ms, lead());
    if actions.contains(&PageAction::RequestLock) {
        actions.extend(page.on_event(now_ms, granted()));
    }
    actions
}

/// The messages of one channel name, for all builds: a change of the format requires another name.
#[test]
fn golden_text_of_what_tabs_say() {
    let page = fixture::page().among_tabs();
    let standing = Box::new(page.leader_state());
    for (message, golden) in [
        (TabMessage::Hello, r#""Hello""#),
        (TabMessage::Contribute(true), r#"{"Contribute":true}"#),
        (TabMessage::Invited("code".into()), r#"{"Invited":"code"}"#),
        (TabMessage::Load, r#""Load""#),
        (TabMessage::Post(PageToPeer::LoadGallery), r#"{"Post":{"type":"load-gallery"}}"#),
        (TabMessage::Limits(Input::TogglePause), r#"{"Limits":"TogglePause"}"#),
        (TabMessage::Limits(Input::Set(Change::Duty(5))), r#"{"Limits":{"Set":{"Duty":5}}}"#),
        (TabMessage::TakeLoad, r#""TakeLoad""#),
        (TabMessage::State(standing), STANDING),
        (
            TabMessage::Worker(PeerToPage::Downloaded { bytes: 7 }),
            r#"{"Worker":{"type":"downloaded","bytes":7}}"#,
        ),
    ] {
        assert_eq!(serde_json::to_string(&message).unwrap(), golden);
        assert_eq!(serde_json::from_str::<TabMessage>(golden).unwrap(), message);
    }
}

const STANDING: &str = r#"{"State":{"peer":"Absent","contributing":false,"pause":null,"elsewhere":null,"activity":{"doing":"idle"},"contribution":{"n_samples_accepted":0,"n_samples_computed":0,"n_samples_unanswered":0,"n_accepted":0,"n_refused":0,"refusals":[],"last_refusal":null,"n_steps_missed":0,"samples_per_second":0.0,"loss":null,"pass":null,"bytes_up":0,"bytes_down":0,"shards":{"bytes_from_peers":0,"bytes_from_backbone":0,"n_failed":0,"n_wrong":0}},"device_change":null,"n_threads":1,"trouble":null,"reviving":null,"n_memory_crashes":0,"notice":null,"transport":null,"peer_id":null,"name":null,"settings":{"duty":100,"battery":"charged","heeds_heat":false,"on_metered":false,"cap_mb":null,"is_scheduled":false,"schedule":{"days":127,"from":1320,"until":420},"only_away":false,"in_background":true,"keeps_screen_on":false},"written":{"day":0,"bytes":0,"is_waived":false}}}"#;

impl SimulatedBrowser {
    /// The first one leads.
    fn open(n_tabs: usize) -> Self {
        let page = |idx: usize| fixture::page().asking_from(1000 * idx as u32).among_tabs();
        let mut browser = Self {
            pages: (0..n_tabs).map(page).collect(),
            posted: vec![Vec::new(); n_tabs],
            n_workers: vec![0; n_tabs],
            others: vec![Vec::new(); n_tabs],
        };
        browser.happens(0, 0.0, lead());
        for idx in 1..n_tabs {
            browser.happens(idx, 0.0, PageEvent::Tabs(TabEvent::Follow));
        }
        browser
    }

    /// No tab of another run holds the compute lock.
    fn happens(&mut self, idx: usize, now_ms: f64, event: PageEvent) {
        let mut is_asked = false;
        for action in self.pages[idx].on_event(now_ms, event) {
            match action {
                PageAction::RequestLock => is_asked = true,
                PageAction::Broadcast(message) => {
                    for other in (0..self.pages.len()).filter(|other| *other != idx) {
                        self.happens(other, now_ms, PageEvent::Tabs(TabEvent::Received(message.clone())));
                    }
                }
                PageAction::Post(message) => self.posted[idx].push(message),
                PageAction::SpawnPeer => self.n_workers[idx] += 1,
                PageAction::EndPeer => self.n_workers[idx] = 0,
                action => self.others[idx].push(action),
            }
        }
        if is_asked {
            self.happens(idx, now_ms, granted());
        }
    }

    fn worker_says(&mut self, idx: usize, message: PeerToPage) {
        self.happens(idx, 1.0, PageEvent::FromPeer(message));
    }

    fn gets_ready(&mut self, idx: usize) {
        let device = DeviceKind::BrowserCpu;
        let (identity, peer_id, device_name) = (vec![7; 32], "12D3".to_owned(), String::new());
        self.worker_says(idx, PeerToPage::Ready { identity, peer_id, device, device_name });
    }
}

#[test]
fn a_second_tab_has_no_worker_and_shows_what_the_first_one_does() {
    let mut browser = SimulatedBrowser::open(2);
    browser.happens(0, 1.0, PageEvent::Toggle);
    browser.gets_ready(0);
    browser.worker_says(0, PeerToPage::Event(ContributorEvent::Activity(Activity::Training { epoch: 4 })));
    let contribution = Contribution { n_samples_accepted: 640, n_accepted: 2, ..Contribution::default() };
    browser.worker_says(0, PeerToPage::Event(ContributorEvent::Contribution(contribution.clone())));
    let follower = &browser.pages[1];
    assert_eq!(browser.n_workers, [1, 0]);
    assert!(follower.contributing && matches!(follower.peer, WorkerState::Ready { .. }));
    assert_eq!(follower.activity, Activity::Training { epoch: 4 });
    assert_eq!(follower.contribution, contribution);
    assert_eq!(follower.peer_id.as_deref(), Some("12D3"));
}

#[test]
fn the_buttons_of_a_follower_act_on_the_leader() {
    let mut browser = SimulatedBrowser::open(3);
    browser.happens(2, 1.0, PageEvent::Toggle);
    assert_eq!(browser.n_workers, [1, 0, 0]);
    browser.gets_ready(0);
    assert!(browser.posted[0].contains(&PageToPeer::Start));
    assert!(browser.pages.iter().all(|page| page.contributing));
    browser.happens(1, 2.0, PageEvent::Toggle);
    assert_eq!(browser.posted[0].last(), Some(&PageToPeer::Stop));
    assert!(browser.pages.iter().all(|page| !page.contributing));
    assert!(browser.posted[1].is_empty() && browser.posted[2].is_empty());
}

#[test]
fn each_tab_gets_the_answers_to_its_own_questions() {
    let mut browser = SimulatedBrowser::open(2);
    browser.happens(1, 1.0, PageEvent::Drawn(vec![1; 784]));
    assert_eq!(browser.n_workers, [1, 0], "a question loads the model, where the work is");
    browser.gets_ready(0);
    browser.happens(0, 1.0, PageEvent::Drawn(vec![2; 784]));
    let asked: Vec<u32> = browser.posted[0]
        .iter()
        .filter_map(|message| match message {
            PageToPeer::Predict { request, .. } => Some(*request),
            _ => None,
        })
        .collect();
    let [of_follower, of_leader] = asked[..] else { panic!("{asked:?}") };
    assert_ne!(of_follower, of_leader);
    let answer = |request| {
        let probabilities = if request == of_leader { vec![1.0, 0.0] } else { vec![0.0, 1.0] };
        PeerToPage::Event(ContributorEvent::Prediction { request, epoch: 5, probabilities })
    };
    browser.worker_says(0, answer(of_follower));
    assert!(browser.pages[0].is_asking());
    browser.worker_says(0, answer(of_leader));
    let top = |idx: usize| browser.pages[idx].prediction.as_ref().unwrap().ranking[0].0;
    assert_eq!((top(0), top(1)), (0, 1));
}

#[test]
fn a_follower_goes_on_when_the_leader_is_closed() {
    let mut browser = SimulatedBrowser::open(2);
    browser.happens(0, 1.0, PageEvent::Toggle);
    browser.gets_ready(0);
    browser.pages.remove(0);
    let (mut follower, actions) = {
        let mut follower = browser.pages.remove(0);
        let actions = leads(&mut follower, 2.0);
        (follower, actions)
    };
    assert!(actions.contains(&PageAction::SpawnPeer), "{actions:?}");
    let hello = actions.iter().find(|action| matches!(action, PageAction::Post(_)));
    let Some(PageAction::Post(PageToPeer::Hello { identity, .. })) = hello else { panic!("{actions:?}") };
    assert_eq!(identity.as_deref(), Some(&[7; 32][..]), "as the same peer");
    assert!(follower.contributing && follower.role() == TabRole::Leading);
    // One that was resting rests.
    let actions = follower.on_event(3.0, PageEvent::Toggle);
    assert_eq!(actions.iter().filter(|action| matches!(action, PageAction::Post(_))).count(), 0);
    let mut resting = SimulatedBrowser::open(2);
    // While the first one does not know yet that it leads no more.
    resting.happens(1, 2.0, lead());
    assert_eq!(resting.n_workers, [0, 0]);
}

#[test]
fn what_one_tab_has_too_little_memory_for_the_next_one_does_not_try() {
    let mut browser = SimulatedBrowser::open(2);
    browser.happens(0, 1.0, PageEvent::Toggle);
    browser.gets_ready(0);
    browser.happens(0, 2.0, PageEvent::PeerLost { reason: PeerLoss::of_words("out of memory") });
    assert!(browser.pages[1].notice.as_ref().unwrap().contains("16 samples at a time"));
    let mut follower = browser.pages.remove(1);
    leads(&mut follower, 3.0);
    assert_eq!(follower.pass_samples_max(), Some(16));
}

#[test]
fn what_the_visitor_paused_stays_paused_when_the_leader_is_closed() {
    let mut browser = SimulatedBrowser::open(2);
    browser.happens(0, 1.0, PageEvent::Toggle);
    browser.gets_ready(0);
    browser.happens(1, 2.0, PageEvent::Limits(Input::TogglePause));
    assert_eq!(browser.posted[0].last(), Some(&PageToPeer::Stop));
    let mut follower = browser.pages.remove(1);
    let actions = leads(&mut follower, 3.0);
    assert!(!actions.contains(&PageAction::SpawnPeer), "{actions:?}");
    assert!(follower.contributing && follower.pause() == Some(PauseReason::Visitor));
    assert!(follower.on_event(4.0, PageEvent::Limits(Input::TogglePause)).contains(&PageAction::RequestLock));
    assert!(follower.on_event(4.0, granted()).contains(&PageAction::SpawnPeer));
}

#[test]
fn what_was_paused_long_ago_is_not_paused_when_the_work_comes_back() {
    let mut browser = SimulatedBrowser::open(2);
    browser.happens(0, 1.0, PageEvent::Toggle);
    browser.happens(0, 2.0, PageEvent::Limits(Input::TogglePause));
    browser.happens(0, 3.0, PageEvent::Tabs(TabEvent::Deposed));
    browser.happens(1, 3.0, lead());
    browser.happens(1, 4.0, PageEvent::Limits(Input::TogglePause));
    assert_eq!(browser.n_workers, [0, 1]);
    browser.happens(1, 5.0, PageEvent::Tabs(TabEvent::Deposed));
    browser.happens(0, 5.0, lead());
    assert_eq!((browser.n_workers, browser.pages[0].pause()), (vec![1, 0], None));
}

#[test]
fn work_that_pauses_out_of_sight_comes_to_the_tab_in_front_once() {
    let mut browser = SimulatedBrowser::open(2);
    let hidden = |is_hidden| PageEvent::Limits(Input::Hidden(is_hidden));
    let doing = |activity| PeerToPage::Event(ContributorEvent::Activity(activity));
    let n_taken = |browser: &SimulatedBrowser| {
        browser.others[1].iter().filter(|action| **action == PageAction::TakeLead).count()
    };
    browser.happens(0, 1.0, PageEvent::Limits(Input::Set(Change::InBackground(false))));
    browser.happens(1, 1.0, hidden(true));
    browser.happens(0, 1.0, PageEvent::Toggle);
    browser.gets_ready(0);
    browser.worker_says(0, doing(Activity::Training { epoch: 4 }));
    // The visitor turns from the first tab to the second.
    browser.happens(0, 2.0, hidden(true));
    browser.happens(1, 2.0, hidden(false));
    assert_eq!(browser.posted[0].last(), Some(&PageToPeer::Stop));
    assert_eq!(n_taken(&browser), 0, "what is under way is handed in first");
    browser.worker_says(0, doing(Activity::Idle));
    browser.happens(1, 3.0, hidden(false));
    assert_eq!(n_taken(&browser), 1);
    browser.happens(0, 4.0, PageEvent::Tabs(TabEvent::Deposed));
    browser.happens(1, 4.0, lead());
    browser.happens(1, 9000.0, PageEvent::Limits(Input::Clock(LocalTime::default())));
    assert_eq!((browser.n_workers, browser.pages[1].pause()), (vec![0, 1], None));
}

#[test]
fn work_that_pauses_out_of_sight_stays_where_it_is_while_no_tab_is_seen() {
    let mut browser = SimulatedBrowser::open(2);
    browser.happens(0, 1.0, PageEvent::Limits(Input::Set(Change::InBackground(false))));
    browser.happens(0, 1.0, PageEvent::Toggle);
    for idx in [1, 0] {
        browser.happens(idx, 2.0, PageEvent::Limits(Input::Hidden(true)));
    }
    browser.gets_ready(0);
    assert_eq!(browser.pages[1].pause(), Some(PauseReason::Hidden));
    assert!(!browser.others[1].contains(&PageAction::TakeLead));
}

#[test]
fn a_follower_that_is_looked_at_again_notices_that_its_leader_is_suspended() {
    let mut page = fixture::page().among_tabs();
    page.on_event(0.0, PageEvent::Tabs(TabEvent::Follow));
    let standing = fixture::page().leader_state();
    page.on_event(1.0, PageEvent::Tabs(TabEvent::Received(TabMessage::State(Box::new(standing)))));
    let over = f64::from(SILENCE_MAX_MS);
    assert_eq!(page.on_event(over, PageEvent::Tabs(TabEvent::Tick)), [], "it has answered");
    let actions = page.on_event(over, PageEvent::Limits(Input::Hidden(false)));
    assert_eq!(
        actions,
        [PageAction::Broadcast(TabMessage::Hello), PageAction::TickIn { delay_ms: SILENCE_MAX_MS }]
    );
    assert_eq!(page.on_event(2.0 * over, PageEvent::Tabs(TabEvent::Tick)), [PageAction::TakeLead]);
}

#[test]
fn settings_of_one_tab_hold_in_the_next_leader() {
    let mut browser = SimulatedBrowser::open(3);
    let duty = |page: &PageState| page.limits.settings().duty.percent();
    for (idx, percent) in [(0, 20), (1, 40)] {
        browser.happens(idx, 1.0, PageEvent::Limits(Input::Set(Change::Duty(percent))));
        assert_eq!(browser.pages.iter().map(duty).collect::<Vec<_>>(), [percent; 3]);
    }
    browser.happens(2, 2.0, PageEvent::Toggle);
    let mut next = browser.pages.remove(2);
    next.on_event(3.0, lead());
    assert_eq!(duty(&next), 40);
}

#[test]
fn an_invitation_that_is_opened_in_a_second_tab_lets_the_first_one_in() {
    let mut browser = SimulatedBrowser::open(1);
    browser.happens(0, 1.0, PageEvent::Toggle);
    browser.gets_ready(0);
    let broken = Activity::Broken { reason: Interruption::NoInvitation };
    browser.worker_says(0, PeerToPage::Event(ContributorEvent::Activity(broken)));
    let mut second = fixture::page().among_tabs().invited_by(Some("code".into()));
    let follows = second.on_event(2.0, PageEvent::Tabs(TabEvent::Follow));
    for action in follows {
        if let PageAction::Broadcast(message) = action {
            browser.happens(0, 2.0, PageEvent::Tabs(TabEvent::Received(message)));
        }
    }
    assert_eq!((browser.n_workers[0], &browser.pages[0].activity), (0, &Activity::Idle));
    browser.happens(0, 3.0, PageEvent::Tabs(TabEvent::Received(TabMessage::Contribute(true))));
    let Some(PageToPeer::Hello { invitation, .. }) = browser.posted[0].last() else {
        panic!("{:?}", browser.posted)
    };
    assert_eq!((browser.n_workers[0], invitation.as_deref()), (1, Some("code")));
}

#[test]
fn a_name_that_is_typed_in_one_tab_is_that_of_all() {
    let mut browser = SimulatedBrowser::open(2);
    browser.happens(1, 1.0, PageEvent::NameTyped("Ada".into()));
    browser.happens(0, 2.0, PageEvent::Toggle);
    browser.gets_ready(0);
    let name = DisplayName::new("Ada").ok();
    assert!(
        browser.posted[0].contains(&PageToPeer::Name { name: name.clone() }),
        "before there was a worker"
    );
    browser.happens(0, 3.0, PageEvent::NameTyped("Grace".into()));
    assert_eq!(browser.pages[1].giving.name, DisplayName::new("Grace").ok());
}

#[test]
fn actions_before_the_role_is_known_are_carried_out_by_the_leader() {
    for (event, is_leader) in [
        (lead(), true),
        (PageEvent::Tabs(TabEvent::Unshared), true),
        (PageEvent::Tabs(TabEvent::Follow), false),
    ] {
        let mut page = fixture::page().among_tabs();
        assert_eq!(page.on_event(0.0, PageEvent::Toggle), [], "nobody has a worker yet");
        let mut actions = page.on_event(1.0, event);
        if actions.contains(&PageAction::RequestLock) {
            actions.extend(page.on_event(1.0, granted()));
        }
        assert_eq!(actions.contains(&PageAction::SpawnPeer), is_leader, "{actions:?}");
        let asks = actions.contains(&PageAction::Broadcast(TabMessage::Contribute(true)));
        assert_eq!(asks, !is_leader, "{actions:?}");
        assert!(page.contributing);
    }
}

#[test]
fn a_leader_that_does_not_answer_is_replaced_and_ends_its_worker() {
    let mut page = fixture::page().among_tabs();
    let actions = page.on_event(0.0, PageEvent::Tabs(TabEvent::Follow));
    assert!(actions.contains(&PageAction::TickIn { delay_ms: SILENCE_MAX_MS }), "{actions:?}");
    assert_eq!(page.on_event(5.0, PageEvent::Tabs(TabEvent::Tick)), []);
    page.on_event(6.0, PageEvent::Toggle);
    let over = f64::from(SILENCE_MAX_MS);
    assert_eq!(page.on_event(over, PageEvent::Tabs(TabEvent::Tick)), [PageAction::TakeLead]);
    assert!(leads(&mut page, over).contains(&PageAction::SpawnPeer), "and what was wanted is done");
    assert_eq!(page.on_event(over, PageEvent::Tabs(TabEvent::Tick)), []);

    let mut browser = SimulatedBrowser::open(2);
    browser.happens(0, 1.0, PageEvent::Toggle);
    browser.happens(0, 2.0, PageEvent::Tabs(TabEvent::Deposed));
    assert_eq!((browser.n_workers[0], browser.pages[0].role()), (0, TabRole::Following));

    // It does not take the lock back from one that it does not understand, unless its visitor wants it to.
    let mut page = fixture::page().among_tabs();
    page.on_event(0.0, lead());
    page.on_event(1.0, PageEvent::Tabs(TabEvent::Deposed));
    assert_eq!(page.on_event(2.0 + over, PageEvent::Tabs(TabEvent::Tick)), []);
    page.on_event(3.0 + over, PageEvent::Toggle);
    assert_eq!(page.on_event(3.0 + 2.0 * over, PageEvent::Tabs(TabEvent::Tick)), [PageAction::TakeLead]);
}

#[test]
fn a_leader_that_answers_is_left_in_peace() {
    let mut browser = SimulatedBrowser::open(2);
    browser.happens(1, 1.0, PageEvent::Toggle);
    browser.happens(1, 60_000.0, PageEvent::Tabs(TabEvent::Tick));
    assert!(!browser.others[1].contains(&PageAction::TakeLead));
}

#[test]
fn a_download_counts_once_in_any_tab() {
    let mut browser = SimulatedBrowser::open(2);
    browser.happens(0, 1.0, PageEvent::LoadModel);
    browser.gets_ready(0);
    browser.worker_says(0, PeerToPage::Downloaded { bytes: 1000 });
    browser.happens(1, 1.0, PageEvent::Received(30));
    for idx in [0, 1] {
        browser.happens(idx, 2.0, PageEvent::Limits(Input::Clock(LocalTime::default())));
    }
    let written = |idx: usize| {
        let bytes = |action: &PageAction| match action {
            PageAction::Limits(LimitsRequest::Write { bytes, .. }) => *bytes,
            _ => 0,
        };
        browser.others[idx].iter().map(bytes).sum::<u64>()
    };
    assert_eq!([written(0), written(1)], [1000, 30]);
}

#[test]
fn a_receipt_is_written_down_once_and_looked_up_by_the_others() {
    let mut browser = SimulatedBrowser::open(2);
    browser.happens(0, 1.0, PageEvent::Toggle);
    browser.gets_ready(0);
    let receipts = vec![fixture::receipt("garments", 1)];
    browser.worker_says(0, PeerToPage::Receipts { receipts: receipts.clone() });
    assert!(browser.others[0].contains(&PageAction::Remember(receipts)));
    assert!(browser.others[1].contains(&PageAction::Recall));
    assert!(
        !browser.others[1]
            .iter()
            .any(|action| matches!(action, PageAction::Remember(_) | PageAction::KeepIdentity(_)))
    );
    let mut kept = BrowserTotals::default();
    kept.add(fixture::receipt("garments", 1));
    browser.happens(1, 2.0, PageEvent::Remembered(kept));
    assert!(browser.pages[1].given().is_some());
}

#[test]
fn tabs_are_for_themselves_where_there_are_no_locks() {
    let mut page = fixture::page();
    assert_eq!(page.role(), TabRole::Alone);
    let actions = page.on_event(0.0, PageEvent::Toggle);
    assert_eq!(actions[0], PageAction::SpawnPeer);
    let heard = PageEvent::Tabs(TabEvent::Received(TabMessage::Contribute(false)));
    assert_eq!(page.on_event(1.0, heard), []);
    assert!(page.contributing);
}
