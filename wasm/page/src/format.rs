//! Numbers as people read them. Never touches the document.

/// Thousands separated by commas: `60,000`.
pub(crate) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (idx, digit) in digits.chars().enumerate() {
        if idx > 0 && (digits.len() - idx).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A large number in words, without its last digits: `812`, `66 thousand`, `1.2 million`.
pub(crate) fn rough_count(value: u64) -> String {
    match value {
        0..1000 => value.to_string(),
        1000..999_500 => format!("{:.0} thousand", value as f64 / 1e3),
        _ => format!("{:.1} million", value as f64 / 1e6),
    }
}

/// A round number of megabytes that somebody chose: no digit behind the point.
pub(crate) fn megabytes(mb: u32) -> String {
    match mb {
        1000.. if mb.is_multiple_of(1000) => format!("{} GB", mb / 1000),
        mb => format!("{mb} MB"),
    }
}

/// Decimal units, one digit after the point below 100 of a unit: `812 bytes`, `1.4 MB`.
pub(crate) fn bytes(value: u64) -> String {
    if value < 1000 {
        return format!("{value} bytes");
    }
    let mut scaled = value as f64 / 1000.0;
    let mut unit = "kB";
    for larger in ["MB", "GB", "TB"] {
        // 999.95 would be shown as 1000.0.
        if scaled < 999.5 {
            break;
        }
        scaled /= 1000.0;
        unit = larger;
    }
    if scaled < 99.95 { format!("{scaled:.1} {unit}") } else { format!("{scaled:.0} {unit}") }
}

/// A number of bytes that has one digit only: `300 MB`, `3 GB`.
pub(crate) fn rough_bytes(value: u64) -> String {
    bytes(value).replace(".0 ", " ")
}

/// Samples per second: `3.4`, `1,204`; a dash where it is not a number.
pub(crate) fn speed(samples_per_second: f32) -> String {
    if !samples_per_second.is_finite() || samples_per_second < 0.0 {
        return "–".into();
    }
    if samples_per_second < 9.95 {
        return format!("{samples_per_second:.1}");
    }
    count(samples_per_second.round() as u64)
}

/// A share between 0 and 1 with one digit: `87.3 %`.
pub(crate) fn percent(share: f32) -> String {
    if share.is_finite() { format!("{:.1} %", share * 100.0) } else { "–".into() }
}

/// A loss in nats: `0.412`.
pub(crate) fn loss(value: f32) -> String {
    if value.is_finite() { format!("{value:.3}") } else { "–".into() }
}

/// How much of a transfer is there: `45 % of 1.2 MB`, or only the bytes where the whole is unknown.
pub(crate) fn transfer(bytes_so_far: u64, bytes_total: Option<u64>) -> String {
    match bytes_total {
        Some(total) if total > 0 => {
            let share = bytes_so_far.min(total) as f64 / total as f64;
            format!("{:.0} % of {}", (share * 100.0).floor(), bytes(total))
        }
        _ => bytes(bytes_so_far),
    }
}

/// How much of a transfer is there, where the program counts what it unpacked and `bytes_on_the_way` is what is really sent.
pub(crate) fn share_of(bytes_so_far: u64, bytes_total: Option<u64>, bytes_on_the_way: Option<u64>) -> String {
    match (bytes_total.filter(|total| *total > 0), bytes_on_the_way) {
        (Some(total), Some(sent)) => {
            let share = u128::from(bytes_so_far.min(total)) * u128::from(sent) / u128::from(total);
            transfer(u64::try_from(share).unwrap_or(sent), Some(sent))
        }
        (Some(total), None) => {
            format!("{:.0} %", (bytes_so_far.min(total) as f64 / total as f64 * 100.0).floor())
        }
        (None, _) => bytes(bytes_so_far),
    }
}

/// The same text, in which numbers stay with their units at the end of a line.
pub(crate) fn unbroken(text: &str) -> String {
    [" %", " bytes", " kB", " MB", " GB"].iter().fold(text.to_owned(), |text, unit| {
        // The space that does not break.
        text.replace(unit, &unit.replace(' ', "\u{a0}"))
    })
}

/// Why something failed, without the names that browsers and libraries have for kinds of errors, and without a
/// full stop, so that it can stand in brackets.
pub(crate) fn reason(text: &str) -> String {
    let is_kind = |part: &&str| part.ends_with("Error") || *part == "JavaScript error";
    let parts: Vec<&str> = text.split(": ").filter(|part| !is_kind(part)).collect();
    // What is nothing but a name says more than nothing.
    let plain = if parts.is_empty() { text.to_owned() } else { parts.join(": ") };
    plain.trim_end_matches('.').to_owned()
}

/// A wait: `in a moment`, `in about 4 seconds`.
pub(crate) fn wait(retry_in_ms: u32) -> String {
    match retry_in_ms.div_ceil(1000) {
        0 | 1 => "in a moment".into(),
        seconds => format!("in about {seconds} seconds"),
    }
}

/// Time that was given: `45 s`, `12 min`, `3.4 h`, `120 h`.
pub(crate) fn duration(seconds: u64) -> String {
    let hours = seconds as f64 / 3600.0;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        _ if hours < 99.95 => format!("{hours:.1} h"),
        _ => format!("{} h", count(hours.round() as u64)),
    }
}

/// How long ago something was: `just now`, `10 minutes ago`, `an hour ago`, `3 hours ago`, `2 days ago`.
pub(crate) fn ago(seconds: u64) -> String {
    let (minutes, hours, days) =
        ((seconds + 30) / 60, (seconds + 1800) / 3600, (seconds + 12 * 3600) / (24 * 3600));
    match seconds {
        0..45 => "just now".into(),
        45..2700 => format!("{} ago", counted(minutes, "minute", "minutes")),
        2700..5400 => "an hour ago".into(),
        5400..129_600 => format!("{hours} hours ago"),
        _ => format!("{} ago", counted(days, "day", "days")),
    }
}

/// `1 contributor`, `7 contributors`.
pub(crate) fn counted(n: u64, singular: &str, plural: &str) -> String {
    format!("{} {}", count(n), if n == 1 { singular } else { plural })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_separators() {
        let texts: Vec<String> = [0, 999, 1000, 60_000, 1_234_567].map(count).into();
        assert_eq!(texts, ["0", "999", "1,000", "60,000", "1,234,567"]);
    }

    #[test]
    fn bytes_change_unit_without_ever_showing_a_thousand_of_one() {
        let values = [0, 999, 1000, 1_449_000, 99_960, 999_400, 999_600, 3_500_000_000];
        let texts: Vec<String> = values.map(bytes).into();
        let want = ["0 bytes", "999 bytes", "1.0 kB", "1.4 MB", "100 kB", "999 kB", "1.0 MB", "3.5 GB"];
        assert_eq!(texts, want);
    }

    #[test]
    fn rough_bytes_have_no_digit_behind_the_point() {
        assert_eq!([300_000_000, 3_000_000_000, 200].map(rough_bytes), ["300 MB", "3 GB", "200 bytes"]);
    }

    #[test]
    fn megabytes_are_as_round_as_they_were_chosen() {
        assert_eq!(
            [50, 250, 1000, 1500, 2000].map(megabytes),
            ["50 MB", "250 MB", "1 GB", "1500 MB", "2 GB"]
        );
    }

    #[test]
    fn numbers_that_are_none_become_a_dash() {
        assert_eq!([speed(f32::NAN), percent(f32::INFINITY), loss(f32::NAN)], ["–", "–", "–"]);
        assert_eq!([speed(0.0), speed(3.44), speed(1203.6)], ["0.0", "3.4", "1,204"]);
        assert_eq!([percent(0.8734), loss(0.4118)], ["87.3 %", "0.412"]);
    }

    #[test]
    fn a_transfer_is_done_only_when_it_is_done() {
        assert_eq!(transfer(999, Some(1000)), "99 % of 1.0 kB");
        assert_eq!(transfer(1000, Some(1000)), "100 % of 1.0 kB");
        assert_eq!(transfer(2000, Some(1000)), "100 % of 1.0 kB");
        assert_eq!(unbroken("45 % of 1.0 MB."), "45\u{a0}% of 1.0\u{a0}MB.");
        let failed =
            "WebTransport: no connection: JavaScript error: WebTransportError: Opening handshake failed.";
        assert_eq!(reason(failed), "WebTransport: no connection: Opening handshake failed");
        assert_eq!([reason("no answer"), reason("TypeError")], ["no answer", "TypeError"]);
        assert_eq!(transfer(2000, None), "2.0 kB");
        assert_eq!(transfer(0, Some(0)), "0 bytes");
        assert_eq!(share_of(500, Some(1000), Some(100_000)), "50 % of 100 kB");
        assert_eq!([share_of(500, Some(1000), None), share_of(5, None, None)], ["50 %", "5 bytes"]);
    }

    #[test]
    fn a_rough_count_is_a_number_and_a_word() {
        let texts = [0, 999, 1000, 66_049, 999_499, 999_500, 12_340_000].map(rough_count);
        let want = ["0", "999", "1 thousand", "66 thousand", "999 thousand", "1.0 million", "12.3 million"];
        assert_eq!(texts, want);
    }

    #[test]
    fn durations_have_one_unit() {
        let texts: Vec<String> = [0, 59, 60, 3599, 3600, 12_240, 7_200_000].map(duration).into();
        assert_eq!(texts, ["0 s", "59 s", "1 min", "59 min", "1.0 h", "3.4 h", "2,000 h"]);
    }

    #[test]
    fn what_was_before_is_said_in_one_unit() {
        let texts: Vec<String> = [3, 60, 600, 2699, 3600, 5399, 5400, 90_000, 172_800].map(ago).into();
        let want = [
            "just now",
            "1 minute ago",
            "10 minutes ago",
            "45 minutes ago",
            "an hour ago",
            "an hour ago",
            "2 hours ago",
            "25 hours ago",
            "2 days ago",
        ];
        assert_eq!(texts, want);
    }

    #[test]
    fn waits_round_up() {
        assert_eq!([wait(0), wait(900), wait(3200)], ["in a moment", "in a moment", "in about 4 seconds"]);
    }
}
