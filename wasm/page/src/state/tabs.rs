//! Several tabs of one browser have one worker and one identity. The tab that holds a lock leads: it has the
//! worker. The others follow: they show how it stands, pass on what their visitor wants, and one of them leads
//! when it is gone. A follower is a page like any other, whose worker is the leader's. Pure; the driver in
//! [`crate::tabs`] holds the lock and the channel.

use barnraise_messages::{
    Activity, Contribution, DeviceChange, DisplayName, Event as Told, PageToPeer, PeerToPage, Way,
};
use serde::{Deserialize, Serialize};

use super::load::{Bearer, Load, LoadEvent};
use super::{Action, Event, Page, Peer};
use crate::conduct::{Input, Reason, Settings, Usage};

/// A leader that does not answer for so long cannot be asked: it is suspended, or of another build.
pub(crate) const SILENCE_MAX_MS: u32 = 10_000;
/// Most actions that wait for the lock to be granted or not, which takes milliseconds.
const HELD_MAX: usize = 32;

/// What this tab is among those of its browser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Role {
    /// The browser has no locks: each tab is for itself.
    #[default]
    Alone,
    /// The lock was asked for.
    Asking,
    /// Another tab has the worker.
    Following,
    /// This tab has it.
    Leading,
}

/// From tab to tab.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum TabMessage {
    /// To the leader: how do you stand?
    Hello,
    /// To the leader: contribute, or stop.
    Contribute(bool),
    /// To the leader: the visitor came by the link of this invitation.
    Invited(String),
    /// To the leader: have a worker.
    Load,
    /// To the leader, for its worker.
    Post(PageToPeer),
    /// To the leader: the visitor set, paused or waived something.
    Conduct(Input),
    /// To the leader: take the browser's load from a tab of another run.
    TakeLoad,
    /// Of the leader.
    Standing(Box<Standing>),
    /// What the leader's worker said, beyond how the leader stands.
    Heard(PeerToPage),
}

/// How the leader stands: what followers show as their own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Standing {
    peer: Peer,
    contributing: bool,
    pause: Option<Reason>,
    /// What the run is called that this browser computes for instead.
    elsewhere: Option<String>,
    activity: Activity,
    contribution: Contribution,
    device_change: Option<DeviceChange>,
    trouble: Option<String>,
    reviving: Option<String>,
    /// Whichever tab has the work next has no more memory for it.
    n_memory_crashes: u32,
    notice: Option<String>,
    way: Option<(Way, Vec<(Way, String)>)>,
    peer_id: Option<String>,
    name: Option<DisplayName>,
    /// What the visitor set, in whichever tab, and what was used of today's data.
    settings: Settings,
    written: Usage,
}

/// What happened between the tabs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TabEvent {
    /// Another tab has the lock.
    Follow,
    /// This tab has it now. What the one before kept for the next worker.
    Lead { identity: Option<Vec<u8>>, way: Option<Way> },
    /// Another tab took it.
    Deposed,
    /// The browser refuses locks.
    Unshared,
    /// Among tabs of several runs.
    Load(LoadEvent),
    /// Another tab says something.
    Heard(TabMessage),
    /// Time passed.
    Tick,
}

/// What a page knows of the other tabs.
#[derive(Debug, Default)]
pub(crate) struct Tabs {
    role: Role,
    /// While the role is not known.
    held: Vec<Action>,
    /// Somebody listens to this leader.
    has_followers: bool,
    told: Option<Box<Standing>>,
    /// Why the leader pauses.
    leader_pause: Option<Reason>,
    /// Of a leader that waits for a tab of another run: what that run is called.
    pub(super) leader_elsewhere: Option<String>,
    /// What this tab has of the browser's load.
    pub(super) load: Load,
    /// Who has it, as this tab wrote down.
    pub(super) noted: Option<Bearer>,
    /// A follower's oldest question that the leader did not answer.
    asked_at_ms: Option<f64>,
    /// The lock was asked for, to bring the work to the tab in front.
    is_taking: bool,
    /// It led, until another tab took the lock. Two that do not understand each other would take it in turns.
    is_deposed: bool,
}

impl Page {
    /// The same page, in a browser that lets its tabs agree.
    pub(crate) fn among_tabs(mut self) -> Self {
        self.tabs.role = Role::Asking;
        self
    }

    pub(crate) fn role(&self) -> Role {
        self.tabs.role
    }

    pub(super) fn leader_pause(&self) -> Option<Reason> {
        self.tabs.leader_pause
    }

    /// Takes in what happened at `now_ms` (any origin, never going back) and says what to do.
    pub(crate) fn on_event(&mut self, now_ms: f64, event: Event) -> Vec<Action> {
        let has_followers = self.tabs.role == Role::Leading && self.tabs.has_followers;
        let heard = match &event {
            Event::FromPeer(message) if has_followers && is_passed_on(message) => Some(message.clone()),
            _ => None,
        };
        let mut own = match event {
            Event::Tabs(event) => self.on_tabs(now_ms, event),
            Event::Toggle if self.tabs.role == Role::Following && self.is_supported() => {
                self.contributing = !self.contributing;
                vec![Action::Tell(TabMessage::Contribute(self.contributing))]
            }
            Event::TakeLoad if self.tabs.role == Role::Following => {
                vec![Action::Tell(TabMessage::TakeLoad)]
            }
            Event::Conduct(input) if self.tabs.role == Role::Following => {
                self.on_follower_conduct(now_ms, input)
            }
            event => self.on_event_here(now_ms, event),
        };
        own.extend(self.mind_load());
        own.extend(self.steer());
        match self.tabs.role {
            Role::Alone => own,
            Role::Asking => self.hold(own),
            Role::Following => {
                let mut passed = self.pass_on(now_ms, own);
                passed.extend(self.bring_to_front());
                passed
            }
            Role::Leading => {
                // After what is written down here, which they look up.
                own.extend(heard.map(TabMessage::Heard).map(Action::Tell));
                own.extend(self.tell_standing());
                own
            }
        }
    }

    /// The settings are each tab's to show and the leader's to act on; only the leader can pause.
    fn on_follower_conduct(&mut self, now_ms: f64, input: Input) -> Vec<Action> {
        let mut actions = match input {
            Input::TogglePause | Input::Waive => Vec::new(),
            input => self.on_event_here(now_ms, Event::Conduct(input)),
        };
        match input {
            Input::Set(_) | Input::TogglePause | Input::Waive => {
                actions.push(Action::Tell(TabMessage::Conduct(input)));
            }
            // Whoever looks again wants to see what is so: the leader may be suspended since.
            Input::Hidden(false) => actions.push(Action::Tell(TabMessage::Hello)),
            _ => {}
        }
        actions
    }

    /// Work that pauses because nobody sees its tab comes to the one that is seen, once what is under way there is
    /// handed in.
    fn bring_to_front(&mut self) -> Option<Action> {
        let waits_for_front = self.contributing && self.tabs.leader_pause == Some(Reason::Hidden);
        let is_done = waits_for_front && self.activity == Activity::Idle;
        let is_due = is_done && !self.conductor.is_hidden();
        (is_due && !std::mem::replace(&mut self.tabs.is_taking, true)).then_some(Action::TakeLead)
    }

    fn on_tabs(&mut self, now_ms: f64, event: TabEvent) -> Vec<Action> {
        match event {
            TabEvent::Unshared => self.settle(Role::Alone),
            TabEvent::Follow => {
                let mut actions = self.settle(Role::Following);
                actions.push(Action::Tell(TabMessage::Hello));
                // Before the wish to contribute, for which it is needed.
                let invited = self.invitation.clone().map(TabMessage::Invited);
                actions.extend(invited.map(Action::Tell));
                if self.contributing {
                    actions.push(Action::Tell(TabMessage::Contribute(true)));
                }
                actions
            }
            TabEvent::Lead { identity, way } => self.lead(now_ms, identity, way),
            TabEvent::Load(event) => self.on_load(now_ms, event),
            TabEvent::Deposed => {
                self.tabs = Tabs { role: Role::Following, is_deposed: true, ..Tabs::default() };
                self.peer = Peer::Absent;
                self.is_unloaded = false;
                self.forget_told();
                vec![Action::EndPeer, Action::LeaveLoad, Action::Tell(TabMessage::Hello)]
            }
            TabEvent::Heard(message) => match self.tabs.role {
                Role::Leading => self.on_follower(now_ms, message),
                Role::Following => self.on_leader(now_ms, message),
                Role::Alone | Role::Asking => Vec::new(),
            },
            TabEvent::Tick => {
                let is_mute = self.tabs.asked_at_ms.is_some_and(|at| now_ms - at >= SILENCE_MAX_MS.into());
                let is_overdue = self.tabs.role == Role::Following && is_mute;
                if is_overdue { vec![Action::TakeLead] } else { Vec::new() }
            }
        }
    }

    /// The role is known; what waited for it.
    fn settle(&mut self, role: Role) -> Vec<Action> {
        self.tabs.role = role;
        // Whoever was opened in the same moment said hello before anybody led.
        self.tabs.has_followers |= role == Role::Leading;
        std::mem::take(&mut self.tabs.held)
    }

    fn lead(&mut self, now_ms: f64, identity: Option<Vec<u8>>, way: Option<Way>) -> Vec<Action> {
        let was_following = self.tabs.role == Role::Following;
        self.identity = identity.or(self.identity.take());
        self.kept_way = way.or(self.kept_way);
        (self.tabs.asked_at_ms, self.tabs.is_deposed, self.tabs.is_taking) = (None, false, false);
        let mut actions = self.settle(Role::Leading);
        if was_following {
            // Whatever was paused when this tab had the work before.
            let is_paused = self.tabs.leader_pause.take() == Some(Reason::Visitor);
            self.conductor.set_paused(now_ms, is_paused);
            self.tabs.leader_elsewhere = None;
            self.peer = Peer::Absent;
            self.forget_told();
            self.endurance.reviving = None;
            // A worker that may contribute is loaded where that is decided.
            if self.is_asking() {
                actions.extend(self.load());
            }
            // The others hear whom they follow now.
            self.tabs.has_followers = true;
        }
        actions
    }

    /// What another tab wants of this one.
    fn on_follower(&mut self, now_ms: f64, message: TabMessage) -> Vec<Action> {
        if matches!(message, TabMessage::Standing(_) | TabMessage::Heard(_)) {
            // Of another leader: for a moment, while the lock is taken from it, there are two.
            return Vec::new();
        }
        self.tabs.has_followers = true;
        // Said again, as whoever asks may be new.
        self.tabs.told = None;
        match message {
            TabMessage::Hello | TabMessage::Standing(_) | TabMessage::Heard(_) => Vec::new(),
            TabMessage::Contribute(true) if !self.contributing => self.start(now_ms),
            TabMessage::Contribute(false) if self.contributing => self.stop(now_ms),
            TabMessage::Contribute(_) => Vec::new(),
            TabMessage::Conduct(input @ (Input::Set(_) | Input::TogglePause | Input::Waive)) => {
                self.on_event_here(now_ms, Event::Conduct(input))
            }
            TabMessage::Conduct(_) => Vec::new(),
            TabMessage::TakeLoad => self.on_take_load(),
            TabMessage::Invited(code) => self.on_invited(code),
            TabMessage::Load => self.load(),
            TabMessage::Post(
                PageToPeer::Hello { .. }
                | PageToPeer::Start
                | PageToPeer::Stop
                | PageToPeer::Conduct(_)
                | PageToPeer::Taken,
            ) => Vec::new(),
            TabMessage::Post(message) => {
                if let PageToPeer::Name { name } = &message {
                    self.giving.name.clone_from(name);
                }
                match self.peer {
                    Peer::Ready { .. } => vec![Action::Post(message)],
                    Peer::Absent | Peer::Loading { .. } => Vec::new(),
                }
            }
        }
    }

    /// A worker shows its credentials once: one that does not contribute, perhaps as it may not, makes room for
    /// another one, which is loaded when it is wanted.
    fn on_invited(&mut self, code: String) -> Vec<Action> {
        let is_known = self.invitation.as_ref() == Some(&code);
        self.invitation = Some(code);
        if is_known || self.contributing || self.peer == Peer::Absent {
            return Vec::new();
        }
        (self.peer, self.activity) = (Peer::Absent, Activity::Idle);
        self.forget_told();
        vec![Action::EndPeer]
    }

    fn on_leader(&mut self, now_ms: f64, message: TabMessage) -> Vec<Action> {
        match message {
            TabMessage::Standing(standing) => self.on_standing(now_ms, *standing),
            TabMessage::Heard(message) => self.on_event_here(now_ms, Event::FromPeer(message)),
            _ => Vec::new(),
        }
    }

    fn on_standing(&mut self, now_ms: f64, standing: Standing) -> Vec<Action> {
        (self.tabs.asked_at_ms, self.tabs.is_deposed) = (None, false);
        let was_ready = matches!(self.peer, Peer::Ready { .. });
        if standing.contributing && !self.contributing {
            self.started_at_ms = Some(now_ms);
        }
        self.peer = standing.peer;
        self.contributing = standing.contributing;
        self.tabs.leader_pause = standing.pause;
        self.tabs.leader_elsewhere = standing.elsewhere;
        self.activity = standing.activity;
        self.contribution = standing.contribution;
        if was_ready && !matches!(self.peer, Peer::Ready { .. }) {
            self.forget_asking();
        }
        self.device_change = standing.device_change;
        self.trouble = standing.trouble;
        self.endurance.reviving = standing.reviving;
        self.endurance.n_memory_crashes = standing.n_memory_crashes;
        if standing.notice.is_some() && standing.notice != self.notice {
            // It may be that a question could not be answered: it is asked again with the next model.
            self.close_question();
        }
        self.notice = standing.notice;
        self.way = standing.way;
        self.peer_id = standing.peer_id.or(self.peer_id.take());
        self.giving.name = standing.name;
        self.conductor.adopt(standing.settings, standing.written);
        let is_ready = matches!(self.peer, Peer::Ready { .. });
        if is_ready && !was_ready { self.asked_once_ready(now_ms) } else { Vec::new() }
    }

    fn standing(&self) -> Standing {
        Standing {
            peer: self.peer.clone(),
            contributing: self.contributing,
            pause: self.pause(),
            elsewhere: self.elsewhere().map(str::to_owned),
            activity: self.activity.clone(),
            contribution: self.contribution.clone(),
            device_change: self.device_change.clone(),
            trouble: self.trouble.clone(),
            reviving: self.endurance.reviving.clone(),
            n_memory_crashes: self.endurance.n_memory_crashes,
            notice: self.notice.clone(),
            way: self.way.clone(),
            peer_id: self.peer_id.clone(),
            name: self.giving.name.clone(),
            settings: self.conductor.settings(),
            written: self.conductor.written(),
        }
    }

    fn tell_standing(&mut self) -> Option<Action> {
        if !self.tabs.has_followers {
            return None;
        }
        let standing = Box::new(self.standing());
        if self.tabs.told.as_ref() == Some(&standing) {
            return None;
        }
        self.tabs.told = Some(standing.clone());
        Some(Action::Tell(TabMessage::Standing(standing)))
    }

    /// What concerns a worker waits until it is known whose; the rest does not.
    fn hold(&mut self, actions: Vec<Action>) -> Vec<Action> {
        let is_of_worker =
            |action: &Action| matches!(action, Action::SpawnPeer | Action::EndPeer | Action::Post(_));
        let (held, rest): (Vec<Action>, Vec<Action>) = actions.into_iter().partition(is_of_worker);
        let room = HELD_MAX.saturating_sub(self.tabs.held.len());
        self.tabs.held.extend(held.into_iter().take(room));
        rest
    }

    /// As a follower does it: the leader has the worker, and keeps what is to be kept.
    fn pass_on(&mut self, now_ms: f64, actions: Vec<Action>) -> Vec<Action> {
        let mut passed: Vec<Action> = actions.into_iter().filter_map(of_follower).collect();
        let is_deposed = self.tabs.is_deposed;
        let asks = |action: &Action| match action {
            // Only its visitor has it taken back.
            Action::Tell(TabMessage::Hello) => !is_deposed,
            Action::Tell(TabMessage::Contribute(_) | TabMessage::Load | TabMessage::TakeLoad) => true,
            _ => false,
        };
        if self.tabs.asked_at_ms.is_none() && passed.iter().any(asks) {
            self.tabs.asked_at_ms = Some(now_ms);
            passed.push(Action::TickIn { delay_ms: SILENCE_MAX_MS });
        }
        passed
    }
}

fn of_follower(action: Action) -> Option<Action> {
    match action {
        Action::SpawnPeer => Some(Action::Tell(TabMessage::Load)),
        // The leader starts and stops its worker by what [`TabMessage::Contribute`] says, and by its own lights.
        Action::Post(PageToPeer::Hello { .. } | PageToPeer::Start | PageToPeer::Stop)
        | Action::KeepIdentity(_)
        | Action::KeepWay(_)
        | Action::ReviveIn { .. }
        | Action::TryGraphicsIn { .. } => None,
        Action::Post(message) => Some(Action::Tell(TabMessage::Post(message))),
        Action::Remember(_) => Some(Action::Recall),
        // One that was just deposed has a worker to end.
        action => Some(action),
    }
}

/// Whether followers hear it as it is: what [`Standing`] says need not be said twice.
fn is_passed_on(message: &PeerToPage) -> bool {
    !matches!(
        message,
        PeerToPage::Loading { .. }
            | PeerToPage::Ready { .. }
            | PeerToPage::Connected { .. }
            | PeerToPage::DialRtc { .. }
            | PeerToPage::Downloaded { .. }
            | PeerToPage::News { .. }
            | PeerToPage::Failed { .. }
            | PeerToPage::Told(
                Told::Activity(_)
                    | Told::Contribution(_)
                    | Told::DeviceChanged { .. }
                    | Told::Described(_)
                    | Told::Failed { .. }
            )
    )
}

#[cfg(test)]
#[path = "tabs/tests.rs"]
mod tests;
