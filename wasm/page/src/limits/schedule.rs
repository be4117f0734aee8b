//! Schedule of computing: days of the week, and hours that may span midnight. Pure.

use serde::{Deserialize, Serialize};

const MINUTES_PER_DAY: u16 = 24 * 60;
const DAYS_PER_WEEK: u8 = 7;
const MS_PER_MINUTE: f64 = 60_000.0;

/// Names of the days of the week.
pub(crate) const DAYS: [&str; 7] =
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// A time in the visitor's time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct LocalTime {
    /// Days since 1 January 1970, by the local date.
    pub(crate) day: i32,
    /// Minutes since midnight.
    pub(crate) minute: u16,
}

impl LocalTime {
    /// Converts milliseconds since 1970 UTC; the local time is `ahead_minutes` ahead of UTC.
    pub(crate) fn of(unix_ms: f64, ahead_minutes: f64) -> Self {
        let minutes = (unix_ms / MS_PER_MINUTE + ahead_minutes).floor();
        let day = (minutes / f64::from(MINUTES_PER_DAY)).floor();
        Self { day: day as i32, minute: (minutes - day * f64::from(MINUTES_PER_DAY)) as u16 }
    }

    /// 0 is Monday.
    pub(crate) fn weekday(self) -> u8 {
        // 1 January 1970 was a Thursday.
        (i64::from(self.day) + 3).rem_euclid(i64::from(DAYS_PER_WEEK)) as u8
    }
}

/// Days and hours. Hours that span midnight belong to the day on which they begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Schedule {
    /// A bit for each day; Monday is the lowest.
    days: u8,
    /// Minutes since midnight.
    from: u16,
    /// First minute after the interval; equal to `from` for the whole day.
    until: u16,
}

/// When a schedule opens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NextOpening {
    /// 0 is today.
    pub(crate) days_ahead: u8,
    /// 0 is Monday.
    pub(crate) weekday: u8,
    /// Minutes since midnight.
    pub(crate) minute: u16,
}

impl Schedule {
    /// Every night.
    pub(crate) const NIGHTS: Self = Self { days: 0x7f, from: 22 * 60, until: 7 * 60 };

    /// Whether hours and bits of days are in range.
    pub(crate) fn is_valid(self) -> bool {
        self.days <= Self::NIGHTS.days && self.from < MINUTES_PER_DAY && self.until < MINUTES_PER_DAY
    }

    /// The schedule with or without a day.
    pub(crate) fn with_day(self, weekday: u8, is_on: bool) -> Self {
        let bit = if weekday < DAYS_PER_WEEK { 1 << weekday } else { 0 };
        Self { days: if is_on { self.days | bit } else { self.days & !bit }, ..self }
    }

    /// The schedule with another begin, if the minute is valid.
    pub(crate) fn beginning(self, from: u16) -> Self {
        if from < MINUTES_PER_DAY { Self { from, ..self } } else { self }
    }

    /// The schedule with another end, if the minute is valid.
    pub(crate) fn ending(self, until: u16) -> Self {
        if until < MINUTES_PER_DAY { Self { until, ..self } } else { self }
    }

    /// Whether it begins on this day.
    pub(crate) fn has_day(self, weekday: u8) -> bool {
        weekday < DAYS_PER_WEEK && self.days & (1 << weekday) != 0
    }

    /// Minutes since midnight at which it begins and ends.
    pub(crate) fn hours(self) -> (u16, u16) {
        (self.from, self.until)
    }

    /// Whether it is open.
    pub(crate) fn is_open(self, at: LocalTime) -> bool {
        let today = at.weekday();
        let yesterday = (today + DAYS_PER_WEEK - 1) % DAYS_PER_WEEK;
        if self.from < self.until {
            return self.has_day(today) && (self.from..self.until).contains(&at.minute);
        }
        // Over midnight, or all around the clock.
        (self.has_day(today) && at.minute >= self.from) || (self.has_day(yesterday) && at.minute < self.until)
    }

    /// The next opening of a closed schedule; `None` if it has no day.
    pub(crate) fn opens(self, at: LocalTime) -> Option<NextOpening> {
        (0..=DAYS_PER_WEEK).find_map(|days_ahead| {
            let weekday = (at.weekday() + days_ahead) % DAYS_PER_WEEK;
            let is_ahead = days_ahead > 0 || at.minute < self.from;
            (is_ahead && self.has_day(weekday)).then_some(NextOpening {
                days_ahead,
                weekday,
                minute: self.from,
            })
        })
    }
}

/// `22:05`, as a time field wants it.
pub(crate) fn clock(minute: u16) -> String {
    format!("{:02}:{:02}", minute / 60, minute % 60)
}

/// Minutes since midnight of what a time field says.
pub(crate) fn minute_of(text: &str) -> Option<u16> {
    let (hours, minutes) = text.split_once(':')?;
    let (hours, minutes): (u16, u16) = (hours.parse().ok()?, minutes.get(..2)?.parse().ok()?);
    (hours < 24 && minutes < 60).then_some(hours * 60 + minutes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Thursday, 1 January 1970.
    fn at(day: i32, hour: u16) -> LocalTime {
        LocalTime { day, minute: hour * 60 }
    }

    #[test]
    fn local_days_begin_at_local_midnight() {
        let midnight_utc = 20_000.0 * 86_400_000.0;
        assert_eq!(LocalTime::of(midnight_utc, 0.0), LocalTime { day: 20_000, minute: 0 });
        assert_eq!(LocalTime::of(midnight_utc, -1.0), LocalTime { day: 19_999, minute: 1439 });
        assert_eq!(LocalTime::of(midnight_utc, 330.0), LocalTime { day: 20_000, minute: 330 });
        assert_eq!(LocalTime::of(-1.0, 0.0).day, -1);
        assert_eq!((at(0, 0).weekday(), at(-1, 0).weekday(), at(4, 0).weekday()), (3, 2, 0));
    }

    #[test]
    fn hours_over_midnight_belong_to_the_day_they_begin_on() {
        let thursdays = Schedule { days: 1 << 3, ..Schedule::NIGHTS };
        assert!(!thursdays.is_open(at(0, 21)) && thursdays.is_open(at(0, 22)));
        assert!(thursdays.is_open(at(1, 6)) && !thursdays.is_open(at(1, 7)));
        assert!(!thursdays.is_open(at(0, 3)), "that is Wednesday's night");
        assert!(!thursdays.is_open(at(1, 23)));
        assert_eq!(thursdays.opens(at(0, 21)), Some(NextOpening { days_ahead: 0, weekday: 3, minute: 1320 }));
        assert_eq!(thursdays.opens(at(1, 7)), Some(NextOpening { days_ahead: 6, weekday: 3, minute: 1320 }));
        assert_eq!(Schedule { days: 0, ..thursdays }.opens(at(0, 0)), None);
    }

    #[test]
    fn a_day_has_hours_or_is_whole() {
        let mornings = Schedule { days: 0x7f, from: 8 * 60, until: 12 * 60 };
        assert!(!mornings.is_open(at(5, 7)) && mornings.is_open(at(5, 8)) && !mornings.is_open(at(5, 12)));
        assert_eq!(mornings.opens(at(5, 13)).unwrap().days_ahead, 1);
        let always = mornings.ending(8 * 60);
        assert!((0..24).all(|hour| always.is_open(at(3, hour))));
        // Closed until the same hour a week later.
        let once = mornings.with_day(0, false);
        let mondays = (1..7).fold(mornings, |schedule, day| schedule.with_day(day, false));
        assert!(!once.has_day(0) && once.has_day(1) && mondays.has_day(0));
        assert_eq!(mondays.opens(at(4, 12)), Some(NextOpening { days_ahead: 7, weekday: 0, minute: 480 }));
    }

    #[test]
    fn times_are_read_as_fields_write_them() {
        for minute in [0, 1, 599, 1320, 1439] {
            assert_eq!(minute_of(&clock(minute)), Some(minute));
        }
        assert_eq!(minute_of("07:30:00"), Some(450));
        for text in ["", "7", "24:00", "07:60", "a:b", "07:", "-1:00", "07:é"] {
            assert_eq!(minute_of(text), None, "{text}");
        }
        assert!(Schedule::NIGHTS.is_valid());
        assert!(!Schedule { days: 0x80, ..Schedule::NIGHTS }.is_valid());
        assert!(!Schedule { from: 1440, ..Schedule::NIGHTS }.is_valid());
        assert_eq!(Schedule::NIGHTS.beginning(1440).ending(9999).with_day(7, false), Schedule::NIGHTS);
    }
}
