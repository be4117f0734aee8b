//! The visitor's settings, and their stored form. Pure: storage is the driver's.

use barnraise_messages::Duty;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::schedule::Schedule;

/// Version of the stored form. Other versions are not read.
const VERSION: u64 = 1;
/// Daily data caps that the page offers, in megabytes.
pub(crate) const CAPS_MB: [u32; 6] = [50, 100, 250, 500, 1000, 5000];
/// Default duty of a phone, and its default cap.
const PHONE_DUTY_PERCENT: u8 = 50;
const PHONE_CAP_MB: u32 = 250;

/// Kind of the device, as far as a page can tell.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Hardware {
    /// A phone or a tablet.
    pub(crate) is_phone: bool,
    /// It has little memory.
    pub(crate) is_small: bool,
}

/// When the battery allows computing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BatteryRule {
    /// While it is charging, and not almost empty.
    Charging,
    /// While charging, or while the charge is high.
    Charged,
    /// Always.
    Any,
}

impl BatteryRule {
    pub(crate) const ALL: [Self; 3] = [Self::Charging, Self::Charged, Self::Any];

    /// Value of the option in the form.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Charging => "charging",
            Self::Charged => "charged",
            Self::Any => "any",
        }
    }
}

/// All settings of the visitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// Share of the time spent computing.
    pub(crate) duty: Duty,
    pub(crate) battery: BatteryRule,
    /// Rest when the device slows down.
    pub(crate) heeds_heat: bool,
    /// Also over a metered link, or while the browser saves data.
    pub(crate) on_metered: bool,
    /// Daily cap, one of [`CAPS_MB`]; `None`: no limit.
    pub(crate) cap_mb: Option<u32>,
    pub(crate) is_scheduled: bool,
    /// Kept also while `is_scheduled` is false.
    pub(crate) schedule: Schedule,
    /// Only while the device is unused.
    pub(crate) only_away: bool,
    /// Also while the tab is hidden.
    pub(crate) in_background: bool,
    /// Keep the screen on while computing.
    pub(crate) keeps_screen_on: bool,
}

/// A change of one setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Change {
    Duty(u8),
    Battery(BatteryRule),
    HeedsHeat(bool),
    OnMetered(bool),
    CapMb(Option<u32>),
    IsScheduled(bool),
    Day(u8, bool),
    From(u16),
    Until(u16),
    OnlyAway(bool),
    InBackground(bool),
    KeepsScreenOn(bool),
    /// Back to the defaults.
    Defaults,
}

impl Settings {
    /// The defaults: a phone is spared, a computer works fully, as its owner asked by the click.
    pub(crate) fn of(hardware: Hardware) -> Self {
        let duty = match hardware.is_phone {
            true => Duty::of_percent(PHONE_DUTY_PERCENT).unwrap_or(Duty::MIN),
            false => Duty::FULL,
        };
        Self {
            duty,
            battery: if hardware.is_phone { BatteryRule::Charging } else { BatteryRule::Charged },
            heeds_heat: hardware.is_phone,
            on_metered: false,
            cap_mb: hardware.is_phone.then_some(PHONE_CAP_MB),
            is_scheduled: false,
            schedule: Schedule::NIGHTS,
            only_away: false,
            in_background: !hardware.is_phone,
            keeps_screen_on: false,
        }
    }

    /// Reads stored settings; each invalid part falls back to its default.
    pub(crate) fn read(kept: &Value, hardware: Hardware) -> Self {
        let fresh = Self::of(hardware);
        if kept.get("version").and_then(Value::as_u64) != Some(VERSION) {
            return fresh;
        }
        let cap_mb =
            part::<Option<u32>>(kept, "cap_mb").filter(|cap| cap.is_none_or(|mb| CAPS_MB.contains(&mb)));
        Self {
            duty: part(kept, "duty").unwrap_or(fresh.duty),
            battery: part(kept, "battery").unwrap_or(fresh.battery),
            heeds_heat: part(kept, "heeds_heat").unwrap_or(fresh.heeds_heat),
            on_metered: part(kept, "on_metered").unwrap_or(fresh.on_metered),
            cap_mb: cap_mb.unwrap_or(fresh.cap_mb),
            is_scheduled: part(kept, "is_scheduled").unwrap_or(fresh.is_scheduled),
            schedule: part(kept, "schedule").filter(|it: &Schedule| it.is_valid()).unwrap_or(fresh.schedule),
            only_away: part(kept, "only_away").unwrap_or(fresh.only_away),
            in_background: part(kept, "in_background").unwrap_or(fresh.in_background),
            keeps_screen_on: part(kept, "keeps_screen_on").unwrap_or(fresh.keeps_screen_on),
        }
    }

    /// The stored form.
    pub(crate) fn to_value(self) -> Value {
        let mut value = json!(self);
        value["version"] = json!(VERSION);
        value
    }

    /// The settings with one change; an invalid change is ignored.
    pub(crate) fn with(self, change: Change, hardware: Hardware) -> Self {
        match change {
            Change::Duty(percent) => Self { duty: Duty::of_percent(percent).unwrap_or(self.duty), ..self },
            Change::Battery(battery) => Self { battery, ..self },
            Change::HeedsHeat(heeds_heat) => Self { heeds_heat, ..self },
            Change::OnMetered(on_metered) => Self { on_metered, ..self },
            Change::CapMb(cap_mb) => Self { cap_mb: cap_mb.filter(|mb| CAPS_MB.contains(mb)), ..self },
            Change::IsScheduled(is_scheduled) => Self { is_scheduled, ..self },
            Change::Day(day, is_on) => Self { schedule: self.schedule.with_day(day, is_on), ..self },
            Change::From(minute) => Self { schedule: self.schedule.beginning(minute), ..self },
            Change::Until(minute) => Self { schedule: self.schedule.ending(minute), ..self },
            Change::OnlyAway(only_away) => Self { only_away, ..self },
            Change::InBackground(in_background) => Self { in_background, ..self },
            Change::KeepsScreenOn(keeps_screen_on) => Self { keeps_screen_on, ..self },
            Change::Defaults => Self::of(hardware),
        }
    }
}

/// A part of the stored form, if it is present and valid.
fn part<T: DeserializeOwned>(kept: &Value, name: &str) -> Option<T> {
    serde_json::from_value(kept.get(name)?.clone()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPUTER: Hardware = Hardware { is_phone: false, is_small: false };
    const PHONE: Hardware = Hardware { is_phone: true, is_small: false };

    #[test]
    fn a_phone_is_spared_unless_its_owner_says_otherwise() {
        let (phone, computer) = (Settings::of(PHONE), Settings::of(COMPUTER));
        assert_eq!((phone.duty.percent(), computer.duty.percent()), (50, 100));
        assert_eq!((phone.battery, phone.cap_mb), (BatteryRule::Charging, Some(250)));
        assert!(phone.heeds_heat && !phone.in_background && !phone.on_metered && !phone.keeps_screen_on);
        assert!(CAPS_MB.contains(&PHONE_CAP_MB));
        let asked = phone.with(Change::Duty(100), PHONE).with(Change::Battery(BatteryRule::Any), PHONE);
        assert_eq!((asked.duty, asked.battery), (Duty::FULL, BatteryRule::Any));
        assert_eq!(asked.with(Change::Defaults, PHONE), phone);
    }

    #[test]
    fn what_was_kept_comes_back() {
        let changes = [
            Change::Duty(20),
            Change::Battery(BatteryRule::Any),
            Change::HeedsHeat(true),
            Change::OnMetered(true),
            Change::CapMb(Some(50)),
            Change::IsScheduled(true),
            Change::Day(6, false),
            Change::From(1),
            Change::Until(2),
            Change::OnlyAway(true),
            Change::InBackground(false),
            Change::KeepsScreenOn(true),
        ];
        let mut settings = Settings::of(COMPUTER);
        for change in changes {
            let before = settings;
            settings = settings.with(change, COMPUTER);
            assert_ne!(settings, before, "{change:?}");
            assert_eq!(Settings::read(&settings.to_value(), COMPUTER), settings);
        }
        assert_eq!(settings.with(Change::CapMb(None), COMPUTER).cap_mb, None);
    }

    #[test]
    fn nonsense_falls_back_part_by_part() {
        let fresh = Settings::of(PHONE);
        for kept in
            [json!(null), json!([]), json!({}), json!({"version": 2, "duty": 5}), json!("x"), json!(7)]
        {
            assert_eq!(Settings::read(&kept, PHONE), fresh, "{kept}");
        }
        let nonsense =
            [json!(null), json!(-1), json!(4), json!(300), json!("x"), json!([]), json!({}), json!(7.5)];
        let whole = fresh.with(Change::KeepsScreenOn(true), PHONE).with(Change::Duty(10), PHONE).to_value();
        let names: Vec<&String> = whole.as_object().into_iter().flat_map(|parts| parts.keys()).collect();
        assert_eq!(names.len(), 11);
        for name in names.into_iter().filter(|name| *name != "version") {
            for bad in &nonsense {
                let mut kept = whole.clone();
                kept[name] = bad.clone();
                let read = Settings::read(&kept, PHONE);
                assert!(Settings::read(&read.to_value(), PHONE) == read, "{name}: {bad}");
                let is_other = *name == "keeps_screen_on" || *name == "duty";
                assert_eq!(read.keeps_screen_on, *name != "keeps_screen_on", "{name}: {bad}");
                assert!(is_other || read.duty.percent() == 10, "{name}: {bad}");
                assert!(read.schedule.is_valid() && read.cap_mb.is_none_or(|mb| CAPS_MB.contains(&mb)));
            }
        }
        let settings = fresh.with(Change::Duty(4), PHONE).with(Change::CapMb(Some(7)), PHONE);
        assert_eq!((settings.duty, settings.cap_mb), (fresh.duty, None));
    }
}
