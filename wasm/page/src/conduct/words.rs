//! Why the tab pauses and what it may do, in words. Pure.

use super::{Battery, BatteryRule, Conductor, DAYS, Opening, Presence, Reason, ScreenLock, Settings, clock};
use crate::format;

/// Why it pauses, and what makes it go on.
pub(crate) fn pause(reason: Reason) -> String {
    let itself = "It goes on by itself";
    match reason {
        Reason::Visitor => "Paused by you. Go on whenever you like.".into(),
        Reason::Hours(None) => "Paused: your hours have no day. Choose one below.".into(),
        Reason::Hours(Some(opening)) => {
            format!("Paused: these are not its hours. {itself} {}.", opening_in_words(opening))
        }
        Reason::InUse => {
            format!("Paused: you are using this device. {itself} when you have been away for a minute.")
        }
        Reason::PresenceNotTold => "Paused: it works only while you are away, and the browser does not tell \
            whether you are. Allow it to, or switch that off below."
            .into(),
        Reason::Hidden => format!("Paused: this page is not in front. {itself} when it is."),
        Reason::AskingBattery => "Looking at the battery first…".into(),
        Reason::NotCharging => format!("Paused: the battery is not charging. {itself} when it is."),
        Reason::BatteryLow { percent, wanted, is_charging: true } => {
            format!("Paused: the battery is at {percent} %. {itself} when it has charged to {wanted} %.")
        }
        Reason::BatteryLow { percent, wanted, is_charging: false } => format!(
            "Paused: the battery is at {percent} %. {itself} when it is charging, or at {wanted} % again."
        ),
        Reason::Hot { minutes } => format!(
            "Paused: this device has become much slower, as one does that is hot. {itself} after a rest of {}.",
            format::counted(minutes.into(), "more minute", "more minutes"),
        ),
        Reason::Metered => {
            format!("Paused: this is mobile data. {itself} on Wi-Fi, or once you allow that below.")
        }
        Reason::SavesData => {
            format!(
                "Paused: this browser saves data. {itself} when it no longer does, or once you allow that below."
            )
        }
        Reason::Cap { mb } => {
            let used = format::megabytes(mb);
            format!("Paused: today's {used} of data are used up. {itself} tomorrow.")
        }
        Reason::Elsewhere => elsewhere(None),
        Reason::Steadying => "About to go on: a few seconds more, to be sure.".into(),
    }
}

/// Another run has this browser's load; what it is called, if that is known.
pub(crate) fn elsewhere(title: Option<&str>) -> String {
    format!(
        "Waiting: in another tab, this browser contributes to {}, and it computes for one run at a time. \
         This tab begins by itself when that one stops.",
        title.unwrap_or("another run")
    )
}

fn opening_in_words(opening: Opening) -> String {
    let Opening { days_ahead, weekday, minute } = opening;
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

/// What it may do here, in a line.
pub(crate) fn summary(conductor: &Conductor) -> String {
    let settings = conductor.settings();
    let mut parts = vec![match settings.duty.percent() {
        100 => "all of the time".to_owned(),
        percent => format!("{percent} % of the time"),
    }];
    if conductor.battery != Battery::Unknown {
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

/// What a rule for the battery allows.
pub(crate) fn battery_rule(rule: BatteryRule) -> &'static str {
    match rule {
        BatteryRule::Charging => "Only while charging",
        BatteryRule::Charged => "Also on battery, above 40 %",
        BatteryRule::Any => "Whatever the battery says",
    }
}

/// How the battery is.
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

/// Whether the link can be told apart.
pub(crate) fn link_note(is_told: bool) -> Option<&'static str> {
    (!is_told).then_some("This browser does not tell what kind of connection it has.")
}

/// What was used of today's data.
pub(crate) fn data_note(conductor: &Conductor) -> String {
    format!("{} today, in this browser.", format::bytes(conductor.bytes_today()))
}

/// Whether the browser tells who is there.
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

/// Whether the screen can be kept on.
pub(crate) fn screen_note(lock: ScreenLock) -> Option<&'static str> {
    match lock {
        ScreenLock::NotInBrowser => Some("This browser cannot."),
        ScreenLock::Refused => Some("The browser would not, perhaps to save power."),
        ScreenLock::Off | ScreenLock::On => None,
    }
}
