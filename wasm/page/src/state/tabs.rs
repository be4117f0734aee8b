//! Leader election among the tabs of one browser, which share one worker and one identity. The tab that holds a lock
//! leads: it has the worker. The others follow: they show the leader's state and forward their visitor's input; one of
//! them leads when the leader is closed. Pure; the driver in [`crate::tabs`] holds the lock and the channel.

use barnraise_messages::{Activity, ContributorEvent, PageToPeer, PeerToPage, TransportKind};

use super::tab_messages::{ComputeLock, LeaderState, LockHolder, TabEvent, TabMessage, TabRole};
use super::{PageAction, PageEvent, PageState, WorkerState};
use crate::limits::{Input, PauseReason};

/// A leader that does not answer for so long is suspended, or of another build.
pub(crate) const SILENCE_MAX_MS: u32 = 10_000;
/// Most actions that wait for the role, which takes milliseconds.
const HELD_MAX: usize = 32;

/// State among the tabs of the browser.
#[derive(Debug, Default)]
pub(crate) struct Tabs {
    role: TabRole,
    /// Actions that wait for the role.
    held: Vec<PageAction>,
    /// This leader has followers.
    has_followers: bool,
    told: Option<Box<LeaderState>>,
    /// Why the leader pauses.
    leader_pause: Option<PauseReason>,
    /// Title of the run that the leader waits for.
    pub(super) leader_elsewhere: Option<String>,
    /// State of the compute lock.
    pub(super) load: ComputeLock,
    /// The holder that this tab stored.
    pub(super) noted: Option<LockHolder>,
    /// Time of a follower's oldest message without an answer of the leader.
    asked_at_ms: Option<f64>,
    /// The lock was requested, to move the worker to the visible tab.
    is_taking: bool,
    /// It led until another tab took the lock. It does not take it back by itself: two incompatible tabs would alternate.
    is_deposed: bool,
}

impl PageState {
    /// Enables leader election.
    pub(crate) fn among_tabs(mut self) -> Self {
        self.tabs.role = TabRole::Asking;
        self
    }

    pub(crate) fn role(&self) -> TabRole {
        self.tabs.role
    }

    pub(super) fn leader_pause(&self) -> Option<PauseReason> {
        self.tabs.leader_pause
    }

    /// Handles an event at `now_ms` (any origin, monotonic); returns the actions to carry out.
    pub(crate) fn on_event(&mut self, now_ms: f64, event: PageEvent) -> Vec<PageAction> {
        let has_followers = self.tabs.role == TabRole::Leading && self.tabs.has_followers;
        let heard = match &event {
            PageEvent::FromPeer(message) if has_followers && is_passed_on(message) => Some(message.clone()),
            _ => None,
        };
        let mut own = match event {
            PageEvent::Tabs(event) => self.on_tabs(now_ms, event),
            PageEvent::Toggle if self.tabs.role == TabRole::Following && self.is_supported() => {
                self.contributing = !self.contributing;
                vec![PageAction::Broadcast(TabMessage::Contribute(self.contributing))]
            }
            PageEvent::TakeLoad if self.tabs.role == TabRole::Following => {
                vec![PageAction::Broadcast(TabMessage::TakeLoad)]
            }
            PageEvent::Limits(input) if self.tabs.role == TabRole::Following => {
                self.on_follower_input(now_ms, input)
            }
            event => self.on_event_here(now_ms, event),
        };
        own.extend(self.take_found_own());
        own.extend(self.update_lock());
        own.extend(self.steer());
        own.extend(self.mind_hosting(now_ms));
        match self.tabs.role {
            TabRole::Alone => own,
            TabRole::Asking => self.hold(own),
            TabRole::Following => {
                let mut passed = self.pass_on(now_ms, own);
                passed.extend(self.bring_to_front());
                passed
            }
            TabRole::Leading => {
                // After this tab's writes to the storage, which followers read.
                own.extend(heard.map(TabMessage::Worker).map(PageAction::Broadcast));
                own.extend(self.share_leader_state());
                own
            }
        }
    }

    /// A follower shows the settings and forwards them; only the leader acts on them.
    fn on_follower_input(&mut self, now_ms: f64, input: Input) -> Vec<PageAction> {
        let mut actions = match input {
            Input::TogglePause | Input::Waive => Vec::new(),
            input => self.on_event_here(now_ms, PageEvent::Limits(input)),
        };
        match input {
            Input::Set(_) | Input::TogglePause | Input::Waive => {
                actions.push(PageAction::Broadcast(TabMessage::Limits(input)));
            }
            // The shown state may be outdated, if the leader was suspended.
            Input::Hidden(false) => actions.push(PageAction::Broadcast(TabMessage::Hello)),
            _ => {}
        }
        actions
    }

    /// Takes the lead if the leader pauses because it is hidden and this tab is visible, once the leader has delivered its
    /// work.
    fn bring_to_front(&mut self) -> Option<PageAction> {
        let waits_for_front = self.contributing && self.tabs.leader_pause == Some(PauseReason::Hidden);
        let is_done = waits_for_front && self.activity == Activity::Idle;
        let is_due = is_done && !self.limits.is_hidden();
        (is_due && !std::mem::replace(&mut self.tabs.is_taking, true)).then_some(PageAction::TakeLead)
    }

    fn on_tabs(&mut self, now_ms: f64, event: TabEvent) -> Vec<PageAction> {
        match event {
            TabEvent::Unshared => self.settle(TabRole::Alone),
            TabEvent::Follow => {
                let mut actions = self.settle(TabRole::Following);
                self.let_go_of_kept_own();
                actions.push(PageAction::Broadcast(TabMessage::Hello));
                // Before Contribute, which needs it.
                let invited = self.invitation.clone().map(TabMessage::Invited);
                actions.extend(invited.map(PageAction::Broadcast));
                if self.contributing {
                    actions.push(PageAction::Broadcast(TabMessage::Contribute(true)));
                }
                actions
            }
            TabEvent::Lead { identity, transport } => self.lead(now_ms, identity, transport),
            TabEvent::Load(event) => self.on_load(now_ms, event),
            TabEvent::Deposed => {
                self.tabs = Tabs { role: TabRole::Following, is_deposed: true, ..Tabs::default() };
                self.let_go_of_kept_own();
                self.peer = WorkerState::Absent;
                self.is_unloaded = false;
                self.forget_posted();
                vec![PageAction::EndPeer, PageAction::ReleaseLock, PageAction::Broadcast(TabMessage::Hello)]
            }
            TabEvent::Received(message) => match self.tabs.role {
                TabRole::Leading => self.on_follower(now_ms, message),
                TabRole::Following => self.on_leader(now_ms, message),
                TabRole::Alone | TabRole::Asking => Vec::new(),
            },
            TabEvent::Tick => {
                let is_mute = self.tabs.asked_at_ms.is_some_and(|at| now_ms - at >= SILENCE_MAX_MS.into());
                let is_overdue = self.tabs.role == TabRole::Following && is_mute;
                if is_overdue { vec![PageAction::TakeLead] } else { Vec::new() }
            }
        }
    }

    /// Sets the role; returns the actions that waited for it.
    fn settle(&mut self, role: TabRole) -> Vec<PageAction> {
        self.tabs.role = role;
        // A tab that was opened at the same moment said hello before there was a leader.
        self.tabs.has_followers |= role == TabRole::Leading;
        std::mem::take(&mut self.tabs.held)
    }

    fn lead(
        &mut self,
        now_ms: f64,
        identity: Option<Vec<u8>>,
        transport: Option<TransportKind>,
    ) -> Vec<PageAction> {
        let was_following = self.tabs.role == TabRole::Following;
        self.identity = identity.or(self.identity.take());
        self.last_transport = transport.or(self.last_transport);
        (self.tabs.asked_at_ms, self.tabs.is_deposed, self.tabs.is_taking) = (None, false, false);
        let mut actions = self.settle(TabRole::Leading);
        if was_following {
            actions.extend(self.look_for_own());
            // Replaces the pause of an earlier time as leader.
            let is_paused = self.tabs.leader_pause.take() == Some(PauseReason::Visitor);
            self.limits.set_paused(now_ms, is_paused);
            self.tabs.leader_elsewhere = None;
            self.peer = WorkerState::Absent;
            self.forget_posted();
            self.endurance.reviving = None;
            // `steer` loads a worker for contributing.
            if self.is_asking() {
                actions.extend(self.load());
            }
            // Announce the new leader.
            self.tabs.has_followers = true;
        }
        actions
    }

    /// Handles a follower's message.
    fn on_follower(&mut self, now_ms: f64, message: TabMessage) -> Vec<PageAction> {
        if matches!(message, TabMessage::State(_) | TabMessage::Worker(_)) {
            // From another leader: there are two for a moment, while the lock is taken.
            return Vec::new();
        }
        self.tabs.has_followers = true;
        // Send the state again, as the sender may be a new tab.
        self.tabs.told = None;
        match message {
            TabMessage::Hello | TabMessage::State(_) | TabMessage::Worker(_) => Vec::new(),
            TabMessage::Contribute(true) if !self.contributing => self.start(now_ms),
            TabMessage::Contribute(false) if self.contributing => self.stop(now_ms),
            TabMessage::Contribute(_) => Vec::new(),
            TabMessage::Limits(input @ (Input::Set(_) | Input::TogglePause | Input::Waive)) => {
                self.on_event_here(now_ms, PageEvent::Limits(input))
            }
            TabMessage::Limits(_) => Vec::new(),
            TabMessage::TakeLoad => self.on_take_load(),
            TabMessage::Invited(code) => self.on_invited(code),
            TabMessage::Load => self.load(),
            TabMessage::Post(
                PageToPeer::Hello { .. }
                | PageToPeer::Host { .. }
                | PageToPeer::Start
                | PageToPeer::Stop
                | PageToPeer::Pacing(_)
                | PageToPeer::OwnPictures { .. }
                | PageToPeer::OwnFiles { .. }
                | PageToPeer::Acknowledged,
            ) => Vec::new(),
            TabMessage::Post(message) => {
                if let PageToPeer::Name { name } = &message {
                    self.giving.name.clone_from(name);
                }
                match self.peer {
                    WorkerState::Ready { .. } => vec![PageAction::Post(message)],
                    WorkerState::Absent | WorkerState::Loading { .. } => Vec::new(),
                }
            }
        }
    }

    /// A worker presents its credentials only once: one that does not contribute is ended for a new invitation. Another
    /// one is loaded when it is wanted.
    fn on_invited(&mut self, code: String) -> Vec<PageAction> {
        let is_known = self.invitation.as_ref() == Some(&code);
        self.invitation = Some(code);
        if is_known || self.contributing || self.peer == WorkerState::Absent {
            return Vec::new();
        }
        (self.peer, self.activity) = (WorkerState::Absent, Activity::Idle);
        self.forget_posted();
        vec![PageAction::EndPeer]
    }

    fn on_leader(&mut self, now_ms: f64, message: TabMessage) -> Vec<PageAction> {
        match message {
            TabMessage::State(standing) => self.on_leader_state(now_ms, *standing),
            TabMessage::Worker(message) => self.on_event_here(now_ms, PageEvent::FromPeer(message)),
            _ => Vec::new(),
        }
    }

    fn on_leader_state(&mut self, now_ms: f64, standing: LeaderState) -> Vec<PageAction> {
        (self.tabs.asked_at_ms, self.tabs.is_deposed) = (None, false);
        let was_ready = matches!(self.peer, WorkerState::Ready { .. });
        if standing.contributing && !self.contributing {
            self.started_at_ms = Some(now_ms);
        }
        self.peer = standing.peer;
        self.contributing = standing.contributing;
        self.tabs.leader_pause = standing.pause;
        self.tabs.leader_elsewhere = standing.elsewhere;
        self.activity = standing.activity;
        self.contribution = standing.contribution;
        if was_ready && !matches!(self.peer, WorkerState::Ready { .. }) {
            self.forget_asking();
        }
        self.device_change = standing.device_change;
        self.n_threads = standing.n_threads;
        self.trouble = standing.trouble;
        self.endurance.reviving = standing.reviving;
        self.endurance.n_memory_crashes = standing.n_memory_crashes;
        if let Some(notice) = standing.notice.as_ref().filter(|notice| self.notice.as_ref() != Some(notice)) {
            // It may be about this tab's question, which is asked again with the next model.
            let _ = self.fail_question(notice.clone());
        }
        self.notice = standing.notice;
        self.connection = standing.transport;
        self.peer_id = standing.peer_id.or(self.peer_id.take());
        self.giving.name = standing.name;
        self.limits.adopt(standing.settings, standing.written);
        let is_ready = matches!(self.peer, WorkerState::Ready { .. });
        if is_ready && !was_ready { self.asked_once_ready(now_ms) } else { Vec::new() }
    }

    fn leader_state(&self) -> LeaderState {
        LeaderState {
            peer: self.peer.clone(),
            contributing: self.contributing,
            pause: self.pause(),
            elsewhere: self.elsewhere().map(str::to_owned),
            activity: self.activity.clone(),
            contribution: self.contribution.clone(),
            device_change: self.device_change.clone(),
            n_threads: self.n_threads,
            trouble: self.trouble.clone(),
            reviving: self.endurance.reviving.clone(),
            n_memory_crashes: self.endurance.n_memory_crashes,
            notice: self.notice.clone(),
            transport: self.connection.clone(),
            peer_id: self.peer_id.clone(),
            name: self.giving.name.clone(),
            settings: self.limits.settings(),
            written: self.limits.written(),
        }
    }

    fn share_leader_state(&mut self) -> Option<PageAction> {
        if !self.tabs.has_followers {
            return None;
        }
        let standing = Box::new(self.leader_state());
        if self.tabs.told.as_ref() == Some(&standing) {
            return None;
        }
        self.tabs.told = Some(standing.clone());
        Some(PageAction::Broadcast(TabMessage::State(standing)))
    }

    /// Holds actions on the worker until the role is known; the others are returned.
    fn hold(&mut self, actions: Vec<PageAction>) -> Vec<PageAction> {
        let is_of_worker = |action: &PageAction| {
            matches!(action, PageAction::SpawnPeer | PageAction::EndPeer | PageAction::Post(_))
        };
        let (held, rest): (Vec<PageAction>, Vec<PageAction>) = actions.into_iter().partition(is_of_worker);
        let room = HELD_MAX.saturating_sub(self.tabs.held.len());
        self.tabs.held.extend(held.into_iter().take(room));
        rest
    }

    /// Converts actions for a follower: the leader has the worker, and writes the storage.
    fn pass_on(&mut self, now_ms: f64, actions: Vec<PageAction>) -> Vec<PageAction> {
        let mut passed: Vec<PageAction> = actions.into_iter().filter_map(of_follower).collect();
        let is_deposed = self.tabs.is_deposed;
        let asks = |action: &PageAction| match action {
            // A deposed leader takes the lock back only if its visitor acts.
            PageAction::Broadcast(TabMessage::Hello) => !is_deposed,
            PageAction::Broadcast(TabMessage::Contribute(_) | TabMessage::Load | TabMessage::TakeLoad) => {
                true
            }
            _ => false,
        };
        if self.tabs.asked_at_ms.is_none() && passed.iter().any(asks) {
            self.tabs.asked_at_ms = Some(now_ms);
            passed.push(PageAction::TickIn { delay_ms: SILENCE_MAX_MS });
        }
        passed
    }
}

fn of_follower(action: PageAction) -> Option<PageAction> {
    match action {
        PageAction::SpawnPeer => Some(PageAction::Broadcast(TabMessage::Load)),
        // The leader starts and stops its worker by itself, after [`TabMessage::Contribute`].
        PageAction::Post(PageToPeer::Hello { .. } | PageToPeer::Start | PageToPeer::Stop)
        | PageAction::KeepIdentity(_)
        | PageAction::SaveTransport(_)
        | PageAction::ReviveIn { .. }
        | PageAction::TryGraphicsIn { .. } => None,
        PageAction::Post(message) => Some(PageAction::Broadcast(TabMessage::Post(message))),
        PageAction::Remember(_) => Some(PageAction::Recall),
        // A leader that was just deposed has to end its worker.
        action => Some(action),
    }
}

/// Whether followers hear it as it is: what [`LeaderState`] contains is not sent twice.
fn is_passed_on(message: &PeerToPage) -> bool {
    !matches!(
        message,
        PeerToPage::Loading { .. }
            | PeerToPage::Ready { .. }
            | PeerToPage::Connected { .. }
            | PeerToPage::Threads { .. }
            | PeerToPage::Hosting { .. }
            | PeerToPage::NotHosting { .. }
            | PeerToPage::DialRtc { .. }
            | PeerToPage::OwnFilesRead { .. }
            | PeerToPage::NoOwnFiles { .. }
            | PeerToPage::Downloaded { .. }
            | PeerToPage::Events { .. }
            | PeerToPage::Failed { .. }
            | PeerToPage::Outdated
            | PeerToPage::Event(
                ContributorEvent::Activity(_)
                    | ContributorEvent::Contribution(_)
                    | ContributorEvent::DeviceChanged { .. }
                    | ContributorEvent::Described(_)
                    | ContributorEvent::Refused { .. }
                    | ContributorEvent::Failed { .. }
            )
    )
}

#[cfg(test)]
#[path = "tabs/tests.rs"]
mod tests;
