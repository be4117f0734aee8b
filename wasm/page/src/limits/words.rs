//! Texts of the resource limits: reasons of a pause, and the settings. Pure.

use super::{
    Battery, BatteryRule, DAYS, NextOpening, PauseReason, Presence, ResourceLimits, ScreenLock, Settings,
    clock,
};
use crate::format;

/// The reason of a pause, and what ends it.
pub(crate) fn pause(reason: PauseReason) -> String {
    let itself = "It goes on by itself";
    let then = match reason {
        PauseReason::Visitor => return "Paused by you. Go on whenever you like.".into(),
        PauseReason::AskingBattery => return "Looking at the battery first…".into(),
        PauseReason::Elsewhere => return elsewhere(None),
        PauseReason::Steadying => return "About to go on: a few seconds more, to be sure.".into(),
        PauseReason::Hours(None) => "Choose one below".into(),
        PauseReason::Hours(Some(opening)) => format!("{itself} {}", opening_in_words(opening)),
        PauseReason::InUse => format!("{itself} when you have been away for a minute"),
        PauseReason::PresenceNotTold => "Allow it to, or switch that off below".into(),
        PauseReason::Hidden | PauseReason::NotCharging => format!("{itself} when it is"),
        PauseReason::BatteryLow { wanted, is_charging: true, .. } => {
            format!("{itself} when it has charged to {wanted} %")
        }
        PauseReason::BatteryLow { wanted, is_charging: false, .. } => {
            format!("{itself} when it is charging, or at {wanted} % again")
        }
        PauseReason::Hot { minutes } => {
            let rest = format::counted(minutes.into(), "more minute", "more minutes");
            format!("{itself} after a rest of {rest}")
        }
        PauseReason::Metered => format!("{itself} on Wi-Fi, or once you allow that below"),
        PauseReason::SavesData => {
            format!("{itself} when it no longer does, or once you allow that below")
        }
        PauseReason::Cap { .. } => format!("{itself} tomorrow"),
    };
    format!("Paused: {}. {then}.", cause(reason))
}

/// The reason alone, without a full stop.
pub(crate) fn cause(reason: PauseReason) -> String {
    match reason {
        PauseReason::Visitor => "you paused it".into(),
        PauseReason::Hours(None) => "your hours have no day".into(),
        PauseReason::Hours(Some(_)) => "these are not its hours".into(),
        PauseReason::InUse => "you are using this device".into(),
        PauseReason::PresenceNotTold => {
            "it works only while you are away, and the browser does not tell whether you are".into()
        }
        PauseReason::Hidden => "this page is not in front".into(),
        PauseReason::AskingBattery => "the browser has not told about the battery yet".into(),
        PauseReason::NotCharging => "the battery is not charging".into(),
        PauseReason::BatteryLow { percent, .. } => format!("the battery is at {percent} %"),
        PauseReason::Hot { .. } => "this device has become much slower, as one does that is hot".into(),
        PauseReason::Metered => "this is mobile data".into(),
        PauseReason::SavesData => "this browser saves data".into(),
        PauseReason::Cap { mb } => format!("today's {} of data are used up", format::megabytes(mb)),
        PauseReason::Elsewhere => "this browser computes for another run".into(),
        PauseReason::Steadying => "it begins in a few seconds".into(),
    }
}

/// Another run computes in this browser; its title, if it is known.
pub(crate) fn elsewhere(title: Option<&str>) -> String {
    format!(
        "Waiting: in another tab, this browser contributes to {}, and it computes for one run at a time. \
         This tab begins by itself when that one stops.",
        title.unwrap_or("another run")
    )
}

fn opening_in_words(opening: NextOpening) -> String {
    let NextOpening { days_ahead, weekday, minute } = opening;
    let day = match days_ahead {
        0 => "today",
        1 => "tomorrow",
        7 => return format!("next {} at {}", day_name(weekday), clock(minute)),
        _ => return format!("on {} at {}", day_name(weekday), clock(minute)),
    };
    format!("{day} at {}", clock(minute))
}

fn day_name(weekday: u8) -> &'static str {
    DAYS.get(usize::from(weekday)).copied().unwrap_or_default()
}

/// Summary of the settings in a line.
pub(crate) fn summary(limits: &ResourceLimits) -> String {
    let settings = limits.settings();
    let mut parts = vec![match settings.duty.percent() {
        100 => "all of the time".to_owned(),
        percent => format!("{percent} % of the time"),
    }];
    if limits.battery != Battery::Unknown {
        match settings.battery {
            BatteryRule::Charging => parts.push("while charging".into()),
            BatteryRule::Charged => parts.push("while the battery is well charged".into()),
            BatteryRule::Any => {}
        }
    }
    if settings.is_scheduled {
        let (from, until) = settings.schedule.hours();
        parts.push(format!("from {} to {}", clock(from), clock(until)));
    }
    if settings.only_away {
        parts.push("while you are away".into());
    }
    if let Some(mb) = settings.cap_mb {
        parts.push(format!("{} a day", format::megabytes(mb)));
    }
    format!("How it works here: {}", parts.join(", "))
}

/// A rule for the battery.
pub(crate) fn battery_rule(rule: BatteryRule) -> &'static str {
    match rule {
        BatteryRule::Charging => "Only while charging",
        BatteryRule::Charged => "Also on battery, above 40 %",
        BatteryRule::Any => "Always, on any charge",
    }
}

/// State of the battery.
pub(crate) fn battery_note(battery: Battery) -> String {
    match battery {
        Battery::Unknown => "This browser does not tell about a battery, so it cannot be spared.".into(),
        Battery::Asking => "Asking the browser…".into(),
        Battery::Known { is_charging, level } => {
            let percent = (level.clamp(0.0, 1.0) * 100.0).round();
            let state = if is_charging { "charging" } else { "not charging" };
            format!("Now at {percent} %, {state}.")
        }
    }
}

/// Note for browsers that do not report the kind of connection.
pub(crate) fn link_note(is_told: bool) -> Option<&'static str> {
    (!is_told).then_some("This browser does not tell what kind of connection it has.")
}

/// Data used today.
pub(crate) fn data_note(limits: &ResourceLimits) -> String {
    format!("{} today, in this browser.", format::bytes(limits.bytes_today()))
}

/// Note on whether the browser reports presence.
pub(crate) fn presence_note(settings: Settings, presence: Presence) -> Option<&'static str> {
    match presence {
        Presence::NotInBrowser => Some("This browser cannot tell; Chrome and Edge can."),
        Presence::NotTold if settings.only_away => {
            Some("The browser was not allowed to tell. Its settings for this site change that.")
        }
        Presence::NotTold => Some("The browser will ask whether it may tell."),
        Presence::Here | Presence::Away => None,
    }
}

/// Note on whether the screen can be kept on.
pub(crate) fn screen_note(lock: ScreenLock) -> Option<&'static str> {
    match lock {
        ScreenLock::NotInBrowser => Some("This browser cannot."),
        ScreenLock::Refused => Some("The browser would not, perhaps to save power."),
        ScreenLock::Off | ScreenLock::On => None,
    }
}
