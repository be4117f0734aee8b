//! Resource limits: whether the tab may compute now, and how hard. They depend on the visitor's settings, and on the
//! browser's reports of battery, link, heat, time and presence. Pure: the driver in [`crate::sensors`] asks the browser,
//! [`words`] has the texts.
//!
//! The tab pauses at once and resumes after a delay, so that a flickering input makes one pause and not many. Of several
//! reasons for a pause it shows the one that the visitor can change best. An unknown input does not pause: a browser
//! that does not report a battery is taken to have none.

mod heat;
mod schedule;
mod settings;
mod usage;
pub(crate) mod words;

use barnraise_messages::{PacingSettings, PassTime};
use serde::{Deserialize, Serialize};

use heat::Heat;
pub(crate) use schedule::{DAYS, LocalTime, NextOpening, clock, minute_of};
pub(crate) use settings::{BatteryRule, CAPS_MB, Change, Hardware, Settings};
pub(crate) use usage::DataUsage;

/// No reason for a pause must have held for so long before the tab resumes.
const STEADY_MS: f64 = 4000.0;
/// Used data is stored in steps of this size, and at every tick of the clock.
const WRITE_BYTES: u64 = 256 * 1024;
const BYTES_PER_MB: u64 = 1_000_000;
/// Charge below which a charging device pauses, and above which it resumes.
const EMPTY: (f32, f32) = (0.10, 0.15);
/// The same for a battery that is not charging, where that is allowed.
const CHARGED: (f32, f32) = (0.40, 0.45);

/// State of the battery.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) enum Battery {
    /// The browser does not report it, or there is none.
    #[default]
    Unknown,
    /// The browser was asked and has not answered yet.
    Asking,
    /// Reported, with a level from 0 to 1.
    Known { is_charging: bool, level: f32 },
}

/// State of the network link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct NetworkLink {
    /// It is charged by volume, as mobile data.
    pub(crate) is_metered: bool,
    /// The browser's data saver is on.
    pub(crate) saves_data: bool,
}

/// Whether the device is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum Presence {
    /// The browser has no API for it.
    #[default]
    NotInBrowser,
    /// The browser has one, and it was not asked or not permitted.
    NotTold,
    Here,
    Away,
}

/// Whether the screen is kept on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum ScreenLock {
    /// The browser has no API for it.
    #[default]
    NotInBrowser,
    Off,
    On,
    /// The browser refused.
    Refused,
}

/// An input to the resource limits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) enum Input {
    /// The local time; comes every few seconds.
    Clock(LocalTime),
    Battery(Battery),
    Link(NetworkLink),
    Presence(Presence),
    ScreenLock(ScreenLock),
    /// The tab was hidden or shown.
    Hidden(bool),
    /// The stored data usage of this browser.
    Written(DataUsage),
    /// The visitor changed a setting.
    Set(Change),
    /// The visitor pressed Pause, or Go on.
    TogglePause,
    /// The visitor waived today's data cap.
    Waive,
}

/// A request to the driver.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum LimitsRequest {
    /// Store the settings for the next visit.
    Keep(Settings),
    /// Add these bytes to the stored usage of a day, then report the total as [`Input::Written`].
    Write { day: i32, bytes: u64 },
    /// Store that the cap is waived on this day, then report it as [`Input::Written`].
    WriteWaiver { day: i32 },
    /// Store the remaining rest from heat, for the next load of the page.
    WriteRest { milliseconds: f64 },
    /// Acquire or release the screen lock.
    KeepScreenOn(bool),
}

/// Reason of a pause.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) enum PauseReason {
    /// The visitor paused it.
    Visitor,
    /// Outside of the schedule; when it opens next.
    Hours(Option<NextOpening>),
    /// The device is in use.
    InUse,
    /// It may compute only while the device is unused, and the browser does not tell.
    PresenceNotTold,
    /// The tab is hidden.
    Hidden,
    /// The browser has not reported the battery yet.
    AskingBattery,
    /// Not plugged in.
    NotCharging,
    /// The charge, and the charge to resume at, in percent.
    BatteryLow { percent: u8, wanted: u8, is_charging: bool },
    /// The device slows down; minutes until the next attempt.
    Hot { minutes: u32 },
    /// The link is charged by volume.
    Metered,
    /// The browser saves data.
    SavesData,
    /// The day's data cap is used up, in megabytes.
    Cap { mb: u32 },
    /// This browser computes for another run.
    Elsewhere,
    /// No reason any more; about to resume.
    Steadying,
}

impl PauseReason {
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

/// Decides whether the tab may compute, and how hard.
#[derive(Debug, Default)]
pub(crate) struct ResourceLimits {
    hardware: Hardware,
    settings: Option<Settings>,
    pub(crate) battery: Battery,
    pub(crate) link: NetworkLink,
    pub(crate) presence: Presence,
    pub(crate) screen_lock: ScreenLock,
    is_hidden: bool,
    now: LocalTime,
    written: DataUsage,
    meter: usage::UsageCounter,
    heat: Heat,
    /// Whether the current rest is stored.
    is_rest_written: bool,
    is_paused: bool,
    /// The charge fell below the threshold, and has not reached the upper one again.
    is_low: bool,
    /// The reason apart from the visitor's pause.
    obstacle: Option<PauseReason>,
    reason: Option<PauseReason>,
    /// No reason for a pause since then.
    clear_since_ms: Option<f64>,
    is_screen_on: bool,
}

impl ResourceLimits {
    /// Limits for this hardware, with the stored settings and data usage.
    pub(crate) fn new(hardware: Hardware, settings: Settings, written: DataUsage, now: LocalTime) -> Self {
        Self { hardware, settings: Some(settings), written, now, ..Self::default() }
    }

    /// With the initial state of the inputs.
    pub(crate) fn sensing(
        self,
        battery: Battery,
        link: NetworkLink,
        presence: Presence,
        lock: ScreenLock,
    ) -> Self {
        Self { battery, link, presence, screen_lock: lock, ..self }
    }

    /// With a remaining rest from heat, which an earlier load of the page stored.
    pub(crate) fn resting(mut self, now_ms: f64, left_ms: f64) -> Self {
        self.heat.go_on_resting(now_ms, left_ms);
        self
    }

    pub(crate) fn settings(&self) -> Settings {
        self.settings.unwrap_or_else(|| Settings::of(self.hardware))
    }

    /// Reason of the pause; `None` while the tab may compute.
    pub(crate) fn reason(&self) -> Option<PauseReason> {
        self.reason
    }

    /// What stands against computing now, whether or not the visitor paused. Unlike a pause it ends at once.
    pub(crate) fn obstacle(&self) -> Option<PauseReason> {
        self.obstacle
    }

    /// Pacing of the worker.
    pub(crate) fn pacing(&self) -> PacingSettings {
        let settings = self.settings();
        // The time of a pass is known only if the worker waits for its end.
        let is_gentle = self.hardware.is_phone || self.hardware.is_small || settings.heeds_heat;
        let day_mb = if self.link.is_metered || self.link.saves_data { Some(0) } else { settings.cap_mb };
        PacingSettings { duty: settings.duty, is_gentle, pass_samples_max: None, day_mb }
    }

    /// Whether the tab is hidden.
    pub(crate) fn is_hidden(&self) -> bool {
        self.is_hidden
    }

    /// Bytes sent and received today.
    pub(crate) fn bytes_today(&self) -> u64 {
        self.written.on(self.now.day).bytes().saturating_add(self.meter.unwritten())
    }

    /// Handles an input. `is_wanted`: the visitor wants to contribute.
    pub(crate) fn on_input(&mut self, now_ms: f64, input: Input, is_wanted: bool) -> Vec<LimitsRequest> {
        let mut requests = Vec::new();
        let is_visitor = matches!(input, Input::Set(_) | Input::TogglePause | Input::Waive);
        match input {
            Input::Clock(now) => {
                // Usage that is not stored yet belongs to the old day.
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
                requests.push(LimitsRequest::Keep(settings));
            }
            Input::TogglePause => self.is_paused = !self.is_paused,
            Input::Waive => {
                self.written = self.written.waived(self.now.day);
                requests.push(LimitsRequest::WriteWaiver { day: self.now.day });
            }
        }
        self.decide(now_ms, is_visitor);
        requests.extend(self.mind_screen(is_wanted));
        requests
    }

    /// The visitor pressed Start or Stop, which ends an earlier Pause.
    pub(crate) fn on_wanted(&mut self, now_ms: f64, is_wanted: bool) -> Vec<LimitsRequest> {
        self.is_paused = false;
        self.decide(now_ms, true);
        self.mind_screen(is_wanted).into_iter().collect()
    }

    /// The stored data usage.
    pub(crate) fn written(&self) -> DataUsage {
        self.written
    }

    /// Takes the leader's settings and usage: this tab may lead next.
    pub(crate) fn adopt(&mut self, settings: Settings, written: DataUsage) {
        (self.settings, self.written) = (Some(settings), written);
    }

    /// Takes the pause of the previous leader.
    pub(crate) fn set_paused(&mut self, now_ms: f64, is_paused: bool) {
        let is_other = std::mem::replace(&mut self.is_paused, is_paused) != is_paused;
        self.decide(now_ms, is_other);
    }

    /// A new worker starts.
    pub(crate) fn on_worker(&mut self) {
        self.meter.on_worker();
        self.heat.forget();
    }

    /// Adds received bytes that no worker counts.
    pub(crate) fn on_received(&mut self, bytes: u64) {
        self.meter.add(bytes);
    }

    /// The worker changed its device.
    pub(crate) fn on_device(&mut self) {
        self.heat.forget();
    }

    /// Takes the worker's report: its bytes since it started, and the time of its newest pass.
    pub(crate) fn on_work(
        &mut self,
        now_ms: f64,
        bytes: u64,
        pass: Option<PassTime>,
    ) -> Option<LimitsRequest> {
        self.meter.on_total(bytes);
        if let Some(pass) = pass.filter(|_| self.reason.is_none()) {
            self.heat.on_pass(now_ms, pass);
        }
        self.decide(now_ms, false);
        self.write(WRITE_BYTES)
    }

    /// The request to store a rest that has just begun.
    pub(crate) fn write_rest(&mut self, now_ms: f64) -> Option<LimitsRequest> {
        let left_ms = self.heat.rests_for(now_ms);
        let was_written = std::mem::replace(&mut self.is_rest_written, left_ms.is_some());
        left_ms.filter(|_| !was_written).map(|milliseconds| LimitsRequest::WriteRest { milliseconds })
    }

    fn write(&mut self, at_least: u64) -> Option<LimitsRequest> {
        let is_due = self.meter.unwritten() > 0 && self.meter.unwritten() >= at_least;
        is_due.then(|| {
            let (day, bytes) = (self.now.day, self.meter.take());
            // The storage may refuse: then only this copy is right.
            self.written = self.written.with(day, bytes);
            LimitsRequest::Write { day, bytes }
        })
    }

    fn mind_screen(&mut self, is_wanted: bool) -> Option<LimitsRequest> {
        let is_at_work = is_wanted && self.reason.is_none() && !self.is_hidden;
        let is_on = self.settings().keeps_screen_on && is_at_work;
        (std::mem::replace(&mut self.is_screen_on, is_on) != is_on)
            .then_some(LimitsRequest::KeepScreenOn(is_on))
    }

    /// Pauses at once for a reason. Resumes only after [`STEADY_MS`] without one, or at once after a visitor's input.
    fn decide(&mut self, now_ms: f64, is_visitor: bool) {
        self.mind_charge();
        self.obstacle = self.against(now_ms);
        let Some(reason) = self.is_paused.then_some(PauseReason::Visitor).or(self.obstacle) else {
            let clear_since_ms = *self.clear_since_ms.get_or_insert(now_ms);
            let is_steady = is_visitor || now_ms - clear_since_ms >= STEADY_MS;
            // A pending answer about the battery is no reason to wait longer.
            let was_asking = matches!(self.reason, Some(PauseReason::AskingBattery));
            self.reason = self.reason.filter(|_| !is_steady && !was_asking).map(|_| PauseReason::Steadying);
            return;
        };
        self.clear_since_ms = None;
        self.reason = Some(reason);
    }

    /// The first reason for a pause apart from the visitor's, in the order of their display.
    fn against(&self, now_ms: f64) -> Option<PauseReason> {
        let settings = self.settings();
        let is_closed = settings.is_scheduled && !settings.schedule.is_open(self.now);
        is_closed
            .then(|| PauseReason::Hours(settings.schedule.opens(self.now)))
            .or_else(|| if settings.only_away { self.against_presence() } else { None })
            .or_else(|| (self.is_hidden && !settings.in_background).then_some(PauseReason::Hidden))
            .or_else(|| self.against_battery(settings.battery))
            .or_else(|| if settings.heeds_heat { self.against_heat(now_ms) } else { None })
            .or_else(|| if settings.on_metered { None } else { self.against_link() })
            .or_else(|| self.against_cap(settings.cap_mb))
    }

    fn against_presence(&self) -> Option<PauseReason> {
        match self.presence {
            Presence::Here => Some(PauseReason::InUse),
            Presence::NotTold => Some(PauseReason::PresenceNotTold),
            Presence::Away | Presence::NotInBrowser => None,
        }
    }

    fn against_battery(&self, rule: BatteryRule) -> Option<PauseReason> {
        let (is_charging, level) = match self.battery {
            _ if rule == BatteryRule::Any => return None,
            Battery::Unknown => return None,
            // A computer does not wait for the answer: it may have no battery.
            Battery::Asking => return self.hardware.is_phone.then_some(PauseReason::AskingBattery),
            Battery::Known { is_charging, level } => (is_charging, level),
        };
        if !is_charging && rule == BatteryRule::Charging {
            return Some(PauseReason::NotCharging);
        }
        let percent = |share: f32| (share.clamp(0.0, 1.0) * 100.0).round() as u8;
        let wanted = percent(self.enough(is_charging));
        self.is_low.then_some(PauseReason::BatteryLow { percent: percent(level), wanted, is_charging })
    }

    /// Charge at which the tab resumes after it was too low.
    fn enough(&self, is_charging: bool) -> f32 {
        if is_charging { EMPTY.1 } else { CHARGED.1 }
    }

    fn mind_charge(&mut self) {
        let Battery::Known { is_charging, level } = self.battery else { return };
        let too_little = if is_charging { EMPTY.0 } else { CHARGED.0 };
        self.is_low = level < too_little || (self.is_low && level < self.enough(is_charging));
    }

    fn against_heat(&self, now_ms: f64) -> Option<PauseReason> {
        let left_ms = self.heat.rests_for(now_ms)?;
        Some(PauseReason::Hot { minutes: (left_ms / 60_000.0).ceil() as u32 })
    }

    fn against_link(&self) -> Option<PauseReason> {
        match self.link {
            NetworkLink { saves_data: true, .. } => Some(PauseReason::SavesData),
            NetworkLink { is_metered: true, .. } => Some(PauseReason::Metered),
            NetworkLink { .. } => None,
        }
    }

    fn against_cap(&self, cap_mb: Option<u32>) -> Option<PauseReason> {
        let mb = cap_mb.filter(|_| !self.written.on(self.now.day).is_waived())?;
        (self.bytes_today() >= u64::from(mb) * BYTES_PER_MB).then_some(PauseReason::Cap { mb })
    }
}

#[cfg(test)]
#[path = "limits/tests.rs"]
mod tests;
