//! Whether the tab may work now, and how hard: the visitor's wishes, and what the browser says of battery, link,
//! heat, hours and presence. Pure: the driver in [`crate::senses`] asks the browser, [`words`] says it to people.
//!
//! It pauses at once and goes on with patience: a sense that wavers makes one pause and not many. Of everything that
//! is against it the one reason is named that the visitor can do most about. What is not known is not held against
//! it: a browser that does not tell of a battery is taken to have none.

mod heat;
mod schedule;
mod settings;
mod usage;
pub(crate) mod words;

use barnraise_messages::{Conduct, PassTime};
use serde::{Deserialize, Serialize};

use heat::Heat;
pub(crate) use schedule::{DAYS, LocalTime, Opening, clock, minute_of};
pub(crate) use settings::{BatteryRule, CAPS_MB, Change, Hardware, Settings};
pub(crate) use usage::Usage;

/// All that was against it must have been gone for so long before it goes on.
const STEADY_MS: f64 = 4000.0;
/// What was sent and received is written down once it is so much, or at the next tick of the clock.
const WRITE_BYTES: u64 = 256 * 1024;
const BYTES_PER_MB: u64 = 1_000_000;
/// Below so much charge nothing is computed, charging or not; above so much it may be again.
const EMPTY: (f32, f32) = (0.10, 0.15);
/// The same for a battery that is not charging, where that is allowed.
const CHARGED: (f32, f32) = (0.40, 0.45);

/// What is known of the battery.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) enum Battery {
    /// The browser does not tell, or there is none.
    #[default]
    Unknown,
    /// The browser was asked and has not answered yet.
    Asking,
    /// So much of it is there.
    Known { is_charging: bool, level: f32 },
}

/// What is known of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Link {
    /// It is a phone's own, which is paid for by its bytes.
    pub(crate) is_metered: bool,
    /// The visitor told the browser to save data.
    pub(crate) saves_data: bool,
}

/// Whether somebody uses the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum Presence {
    /// The browser cannot tell.
    #[default]
    NotInBrowser,
    /// It could, and was not asked or may not.
    NotTold,
    Here,
    Away,
}

/// Whether the screen is kept on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum ScreenLock {
    /// The browser cannot.
    #[default]
    NotInBrowser,
    Off,
    On,
    /// It was asked, and would not.
    Refused,
}

/// Something that matters for it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) enum Input {
    /// It is so late; comes every few seconds.
    Clock(LocalTime),
    Battery(Battery),
    Link(Link),
    Presence(Presence),
    ScreenLock(ScreenLock),
    /// The tab is not to be seen.
    Hidden(bool),
    /// What this browser has sent and received by what is written down.
    Written(Usage),
    /// The visitor set something.
    Set(Change),
    /// The visitor pressed Pause, or Go on.
    TogglePause,
    /// The visitor wants to go on today, whatever it costs.
    Waive,
}

/// Something to do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Request {
    /// Keep them for the next visit.
    Keep(Settings),
    /// Add these bytes to what is written down of a day, then say what it is by now.
    Write { day: i32, bytes: u64 },
    /// Write down that there is no limit on this day, then say so.
    WriteWaiver { day: i32 },
    /// Write down that the device rests from heat for so long, for the next page.
    WriteRest { milliseconds: f64 },
    /// Keep the screen on, or no longer.
    KeepScreenOn(bool),
}

/// Why it pauses.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) enum Reason {
    /// The visitor paused it.
    Visitor,
    /// It is not the hour; when it is.
    Hours(Option<Opening>),
    /// Somebody uses the device.
    InUse,
    /// It is to work only while nobody does, and cannot know.
    PresenceNotTold,
    /// The tab is hidden.
    Hidden,
    /// The browser has not yet said how the battery is.
    AskingBattery,
    /// Not plugged in.
    NotCharging,
    /// So little is left, in percent, and so much is wanted.
    BatteryLow { percent: u8, wanted: u8, is_charging: bool },
    /// The device slows down; minutes until it is tried again.
    Hot { minutes: u32 },
    /// A link that is paid for by its bytes.
    Metered,
    /// The browser saves data.
    SavesData,
    /// As many megabytes as the day has.
    Cap { mb: u32 },
    /// This browser computes for another run.
    Elsewhere,
    /// Nothing any more, for a moment.
    Steadying,
}

impl Reason {
    /// For tests and for the style sheet.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Visitor => "visitor",
            Self::Hours(_) => "hours",
            Self::InUse => "in-use",
            Self::PresenceNotTold => "presence-not-told",
            Self::Hidden => "hidden",
            Self::AskingBattery => "asking-battery",
            Self::NotCharging => "not-charging",
            Self::BatteryLow { .. } => "battery-low",
            Self::Hot { .. } => "hot",
            Self::Metered => "metered",
            Self::SavesData => "saves-data",
            Self::Cap { .. } => "cap",
            Self::Elsewhere => "elsewhere",
            Self::Steadying => "steadying",
        }
    }
}

/// Decides.
#[derive(Debug, Default)]
pub(crate) struct Conductor {
    hardware: Hardware,
    settings: Option<Settings>,
    pub(crate) battery: Battery,
    pub(crate) link: Link,
    pub(crate) presence: Presence,
    pub(crate) screen_lock: ScreenLock,
    is_hidden: bool,
    now: LocalTime,
    written: Usage,
    meter: usage::Meter,
    heat: Heat,
    /// The rest that is going on is written down.
    is_rest_written: bool,
    is_paused: bool,
    /// Too little charge was seen, and not yet enough again.
    is_low: bool,
    reason: Option<Reason>,
    /// Nothing has been against it since then.
    clear_since_ms: Option<f64>,
    is_screen_on: bool,
}

impl Conductor {
    /// On a device of this kind, with what was kept of its visitor's wishes and of what was sent and received.
    pub(crate) fn new(hardware: Hardware, settings: Settings, written: Usage, now: LocalTime) -> Self {
        Self { hardware, settings: Some(settings), written, now, ..Self::default() }
    }

    /// As these were at the beginning.
    pub(crate) fn sensing(self, battery: Battery, link: Link, presence: Presence, lock: ScreenLock) -> Self {
        Self { battery, link, presence, screen_lock: lock, ..self }
    }

    /// On a device that rests from heat for so many milliseconds yet, as an earlier page wrote down.
    pub(crate) fn resting(mut self, now_ms: f64, left_ms: f64) -> Self {
        self.heat.go_on_resting(now_ms, left_ms);
        self
    }

    pub(crate) fn settings(&self) -> Settings {
        self.settings.unwrap_or_else(|| Settings::of(self.hardware))
    }

    /// Why it pauses, if it does.
    pub(crate) fn reason(&self) -> Option<Reason> {
        self.reason
    }

    /// How the worker is to work, while it may.
    pub(crate) fn conduct(&self) -> Conduct {
        let settings = self.settings();
        // Only where the end of each pass is waited for is it known how long one takes.
        let is_gentle = self.hardware.is_phone || self.hardware.is_small || settings.heeds_heat;
        Conduct { duty: settings.duty, is_gentle, pass_samples_max: None }
    }

    /// Whether the tab is not to be seen.
    pub(crate) fn is_hidden(&self) -> bool {
        self.is_hidden
    }

    /// Sent and received today.
    pub(crate) fn bytes_today(&self) -> u64 {
        self.written.on(self.now.day).bytes().saturating_add(self.meter.unwritten())
    }

    /// Takes in what happened while the visitor wants to contribute, or does not, and says what to do.
    pub(crate) fn on_input(&mut self, now_ms: f64, input: Input, is_wanted: bool) -> Vec<Request> {
        let mut requests = Vec::new();
        let is_visitor = matches!(input, Input::Set(_) | Input::TogglePause | Input::Waive);
        match input {
            Input::Clock(now) => {
                // What is not written down yet is of the day before.
                requests.extend(self.write(0));
                self.now = now;
            }
            Input::Battery(battery) => self.battery = battery,
            Input::Link(link) => self.link = link,
            Input::Presence(presence) => self.presence = presence,
            Input::ScreenLock(lock) => self.screen_lock = lock,
            Input::Hidden(is_hidden) => {
                self.is_hidden = is_hidden;
                requests.extend(self.write(0));
            }
            Input::Written(written) => self.written = written,
            Input::Set(change) => {
                let settings = self.settings().with(change, self.hardware);
                self.settings = Some(settings);
                requests.push(Request::Keep(settings));
            }
            Input::TogglePause => self.is_paused = !self.is_paused,
            Input::Waive => {
                self.written = self.written.waived(self.now.day);
                requests.push(Request::WriteWaiver { day: self.now.day });
            }
        }
        self.decide(now_ms, is_visitor);
        requests.extend(self.mind_screen(is_wanted));
        requests
    }

    /// The visitor wants to contribute, or no longer: nothing holds it back that was pressed before.
    pub(crate) fn on_wanted(&mut self, now_ms: f64, is_wanted: bool) -> Vec<Request> {
        self.is_paused = false;
        self.decide(now_ms, true);
        self.mind_screen(is_wanted).into_iter().collect()
    }

    /// What is written down of what was sent and received.
    pub(crate) fn written(&self) -> Usage {
        self.written
    }

    /// What holds in the tab that has the work holds in the others: one of them has it next.
    pub(crate) fn adopt(&mut self, settings: Settings, written: Usage) {
        (self.settings, self.written) = (Some(settings), written);
    }

    /// The visitor paused it in the tab that had the work before, or did not.
    pub(crate) fn set_paused(&mut self, now_ms: f64, is_paused: bool) {
        let is_other = std::mem::replace(&mut self.is_paused, is_paused) != is_paused;
        self.decide(now_ms, is_other);
    }

    /// A worker begins.
    pub(crate) fn on_worker(&mut self) {
        self.meter.on_worker();
        self.heat.forget();
    }

    /// So many bytes came over the network that no worker counts.
    pub(crate) fn on_received(&mut self, bytes: u64) {
        self.meter.add(bytes);
    }

    /// Another device computes.
    pub(crate) fn on_device(&mut self) {
        self.heat.forget();
    }

    /// What the worker says of itself: bytes in all since it began, and how long its newest pass took.
    pub(crate) fn on_work(&mut self, now_ms: f64, bytes: u64, pass: Option<PassTime>) -> Option<Request> {
        self.meter.on_total(bytes);
        if let Some(pass) = pass.filter(|_| self.reason.is_none()) {
            self.heat.on_pass(now_ms, pass);
        }
        self.decide(now_ms, false);
        self.write(WRITE_BYTES)
    }

    /// What the next page has to know of a rest that has just begun.
    pub(crate) fn write_rest(&mut self, now_ms: f64) -> Option<Request> {
        let left_ms = self.heat.rests_for(now_ms);
        let was_written = std::mem::replace(&mut self.is_rest_written, left_ms.is_some());
        left_ms.filter(|_| !was_written).map(|milliseconds| Request::WriteRest { milliseconds })
    }

    fn write(&mut self, at_least: u64) -> Option<Request> {
        let is_due = self.meter.unwritten() > 0 && self.meter.unwritten() >= at_least;
        is_due.then(|| {
            let (day, bytes) = (self.now.day, self.meter.take());
            // The storage may refuse: then this is all that is known.
            self.written = self.written.with(day, bytes);
            Request::Write { day, bytes }
        })
    }

    fn mind_screen(&mut self, is_wanted: bool) -> Option<Request> {
        let is_at_work = is_wanted && self.reason.is_none() && !self.is_hidden;
        let is_on = self.settings().keeps_screen_on && is_at_work;
        (std::mem::replace(&mut self.is_screen_on, is_on) != is_on).then_some(Request::KeepScreenOn(is_on))
    }

    /// What is against it is named at once; that nothing is any more has to last, unless the visitor has just said so.
    fn decide(&mut self, now_ms: f64, is_visitor: bool) {
        self.mind_charge();
        let Some(reason) = self.against(now_ms) else {
            let clear_since_ms = *self.clear_since_ms.get_or_insert(now_ms);
            let is_steady = is_visitor || now_ms - clear_since_ms >= STEADY_MS;
            // What was only asked for was never against it.
            let was_asking = matches!(self.reason, Some(Reason::AskingBattery));
            self.reason = self.reason.filter(|_| !is_steady && !was_asking).map(|_| Reason::Steadying);
            return;
        };
        self.clear_since_ms = None;
        self.reason = Some(reason);
    }

    /// Everything that is against it, in the order in which it is said.
    fn against(&self, now_ms: f64) -> Option<Reason> {
        let settings = self.settings();
        let is_closed = settings.is_scheduled && !settings.schedule.is_open(self.now);
        self.is_paused
            .then_some(Reason::Visitor)
            .or_else(|| is_closed.then(|| Reason::Hours(settings.schedule.opens(self.now))))
            .or_else(|| if settings.only_away { self.against_presence() } else { None })
            .or_else(|| (self.is_hidden && !settings.in_background).then_some(Reason::Hidden))
            .or_else(|| self.against_battery(settings.battery))
            .or_else(|| if settings.heeds_heat { self.against_heat(now_ms) } else { None })
            .or_else(|| if settings.on_metered { None } else { self.against_link() })
            .or_else(|| self.against_cap(settings.cap_mb))
    }

    fn against_presence(&self) -> Option<Reason> {
        match self.presence {
            Presence::Here => Some(Reason::InUse),
            Presence::NotTold => Some(Reason::PresenceNotTold),
            Presence::Away | Presence::NotInBrowser => None,
        }
    }

    fn against_battery(&self, rule: BatteryRule) -> Option<Reason> {
        let (is_charging, level) = match self.battery {
            _ if rule == BatteryRule::Any => return None,
            Battery::Unknown => return None,
            // A computer does not wait for the answer: it may well have no battery.
            Battery::Asking => return self.hardware.is_phone.then_some(Reason::AskingBattery),
            Battery::Known { is_charging, level } => (is_charging, level),
        };
        if !is_charging && rule == BatteryRule::Charging {
            return Some(Reason::NotCharging);
        }
        let percent = |share: f32| (share.clamp(0.0, 1.0) * 100.0).round() as u8;
        let wanted = percent(self.enough(is_charging));
        self.is_low.then_some(Reason::BatteryLow { percent: percent(level), wanted, is_charging })
    }

    /// So much charge is wanted again once there was too little.
    fn enough(&self, is_charging: bool) -> f32 {
        if is_charging { EMPTY.1 } else { CHARGED.1 }
    }

    fn mind_charge(&mut self) {
        let Battery::Known { is_charging, level } = self.battery else { return };
        let too_little = if is_charging { EMPTY.0 } else { CHARGED.0 };
        self.is_low = level < too_little || (self.is_low && level < self.enough(is_charging));
    }

    fn against_heat(&self, now_ms: f64) -> Option<Reason> {
        let left_ms = self.heat.rests_for(now_ms)?;
        Some(Reason::Hot { minutes: (left_ms / 60_000.0).ceil() as u32 })
    }

    fn against_link(&self) -> Option<Reason> {
        match self.link {
            Link { saves_data: true, .. } => Some(Reason::SavesData),
            Link { is_metered: true, .. } => Some(Reason::Metered),
            Link { .. } => None,
        }
    }

    fn against_cap(&self, cap_mb: Option<u32>) -> Option<Reason> {
        let mb = cap_mb.filter(|_| !self.written.on(self.now.day).is_waived())?;
        (self.bytes_today() >= u64::from(mb) * BYTES_PER_MB).then_some(Reason::Cap { mb })
    }
}

#[cfg(test)]
#[path = "conduct/tests.rs"]
mod tests;
