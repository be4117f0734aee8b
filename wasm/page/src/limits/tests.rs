#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;

use super::*;

const COMPUTER: Hardware = Hardware { is_phone: false, is_small: false };
const PHONE: Hardware = Hardware { is_phone: true, is_small: false };
/// A Thursday at noon.
const NOON: LocalTime = LocalTime { day: 0, minute: 12 * 60 };
const PLUGGED: Battery = Battery::Known { is_charging: true, level: 0.8 };

fn limits(hardware: Hardware) -> ResourceLimits {
    let mut limits = ResourceLimits::new(hardware, Settings::of(hardware), DataUsage::default(), NOON);
    limits.on_wanted(0.0, true);
    limits
}

/// A phone without a reason for a pause.
fn content_phone() -> ResourceLimits {
    let mut phone = limits(PHONE);
    phone.on_input(0.0, Input::Battery(PLUGGED), true);
    assert_eq!(phone.reason(), None);
    phone
}

/// The reason once `input` came at `now_ms`.
fn after(limits: &mut ResourceLimits, now_ms: f64, input: Input) -> Option<PauseReason> {
    limits.on_input(now_ms, input, true);
    limits.reason()
}

fn unplugged(level: f32) -> Input {
    Input::Battery(Battery::Known { is_charging: false, level })
}

fn plugged(level: f32) -> Input {
    Input::Battery(Battery::Known { is_charging: true, level })
}

#[test]
fn a_computer_of_which_nothing_is_known_works_all_the_time() {
    let computer = limits(COMPUTER);
    assert_eq!((computer.reason(), computer.pacing()), (None, PacingSettings::default()));
}

#[test]
fn a_phone_works_gently_and_only_while_it_charges() {
    let mut phone = limits(PHONE);
    assert!(phone.pacing().is_gentle && phone.pacing().duty.percent() == 50);
    assert_eq!(after(&mut phone, 0.0, Input::Battery(Battery::Asking)), Some(PauseReason::AskingBattery));
    assert_eq!(after(&mut phone, 1.0, plugged(0.5)), None, "nothing was against it");
    assert_eq!(after(&mut phone, 2.0, unplugged(1.0)), Some(PauseReason::NotCharging));
    assert_eq!(after(&mut phone, 3.0, plugged(1.0)), Some(PauseReason::Steadying));
    assert_eq!(after(&mut phone, 3.0 + STEADY_MS, Input::Clock(NOON)), None);
}

#[test]
fn a_battery_that_is_almost_empty_charges_first() {
    let mut phone = content_phone();
    let low = |percent| Some(PauseReason::BatteryLow { percent, wanted: 15, is_charging: true });
    assert_eq!(after(&mut phone, 0.0, plugged(0.11)), None);
    assert_eq!(after(&mut phone, 1e5, plugged(0.09)), low(9));
    assert_eq!(after(&mut phone, 2e5, plugged(0.14)), low(14));
    assert_eq!(after(&mut phone, 3e5, plugged(0.15)), Some(PauseReason::Steadying));
    assert_eq!(after(&mut phone, 4e5, plugged(0.14)), None);
}

#[test]
fn a_laptop_may_use_its_battery_as_long_as_there_is_much_of_it() {
    let mut laptop = limits(COMPUTER);
    assert_eq!(after(&mut laptop, 0.0, Input::Battery(Battery::Asking)), None);
    assert_eq!(after(&mut laptop, 0.0, unplugged(0.41)), None);
    let low = |percent| Some(PauseReason::BatteryLow { percent, wanted: 45, is_charging: false });
    assert_eq!(after(&mut laptop, 1e5, unplugged(0.39)), low(39));
    assert_eq!(after(&mut laptop, 2e5, unplugged(0.44)), low(44));
    assert_eq!(after(&mut laptop, 3e5, plugged(0.44)), Some(PauseReason::Steadying));
    assert_eq!(after(&mut laptop, 4e5, Input::Clock(NOON)), None);
    assert_eq!(after(&mut laptop, 5e5, unplugged(0.2)), low(20));
    // What the visitor says counts at once.
    assert_eq!(after(&mut laptop, 5e5, Input::Set(Change::Battery(BatteryRule::Any))), None);
}

#[test]
fn mobile_data_and_data_saver_are_respected_everywhere() {
    for hardware in [PHONE, COMPUTER] {
        let mut device = limits(hardware);
        let link = |is_metered, saves_data| Input::Link(NetworkLink { is_metered, saves_data });
        assert_eq!(after(&mut device, 0.0, link(true, false)), Some(PauseReason::Metered));
        assert_eq!(after(&mut device, 0.0, link(true, true)), Some(PauseReason::SavesData));
        assert_eq!(after(&mut device, 0.0, Input::Set(Change::OnMetered(true))), None);
    }
}

#[test]
fn hours_are_kept_and_the_next_ones_are_named() {
    let mut device = limits(COMPUTER);
    let opening = NextOpening { days_ahead: 0, weekday: 3, minute: 22 * 60 };
    assert_eq!(
        after(&mut device, 0.0, Input::Set(Change::IsScheduled(true))),
        Some(PauseReason::Hours(Some(opening)))
    );
    assert!(words::pause(device.reason().unwrap()).contains("today at 22:00"));
    let night = LocalTime { minute: 22 * 60, ..NOON };
    assert_eq!(after(&mut device, 1e5, Input::Clock(night)), Some(PauseReason::Steadying));
    assert_eq!(after(&mut device, 2e5, Input::Clock(night)), None);
    assert!(matches!(
        after(&mut device, 3e5, Input::Clock(LocalTime { day: 1, minute: 420 })),
        Some(PauseReason::Hours(_))
    ));
    for day in 0..7 {
        device.on_input(3e5, Input::Set(Change::Day(day, false)), true);
    }
    assert_eq!(device.reason(), Some(PauseReason::Hours(None)));
}

#[test]
fn only_while_away_needs_a_browser_that_tells() {
    let mut device = limits(COMPUTER);
    assert_eq!(after(&mut device, 0.0, Input::Set(Change::OnlyAway(true))), None, "it cannot tell");
    assert_eq!(
        after(&mut device, 0.0, Input::Presence(Presence::NotTold)),
        Some(PauseReason::PresenceNotTold)
    );
    assert_eq!(after(&mut device, 0.0, Input::Presence(Presence::Here)), Some(PauseReason::InUse));
    assert_eq!(after(&mut device, 0.0, Input::Presence(Presence::Away)), Some(PauseReason::Steadying));
    assert_eq!(after(&mut device, STEADY_MS, Input::Presence(Presence::Away)), None);
    assert_eq!(after(&mut device, STEADY_MS, Input::Presence(Presence::Here)), Some(PauseReason::InUse));
    assert_eq!(after(&mut device, STEADY_MS, Input::Set(Change::OnlyAway(false))), None);
}

#[test]
fn a_phone_pauses_in_the_background_and_a_computer_goes_on() {
    assert_eq!(after(&mut content_phone(), 0.0, Input::Hidden(true)), Some(PauseReason::Hidden));
    assert_eq!(after(&mut limits(COMPUTER), 0.0, Input::Hidden(true)), None);
}

#[test]
fn a_hot_phone_rests_and_says_for_how_long() {
    let mut phone = content_phone();
    let mut now_ms = 0.0;
    let mut work = |phone: &mut ResourceLimits, milliseconds, seconds| {
        for _ in 0..5 * seconds {
            now_ms += 200.0;
            phone.on_work(now_ms, 0, Some(PassTime { n_samples: 8, milliseconds }));
        }
        now_ms
    };
    work(&mut phone, 10.0, 30);
    assert_eq!(phone.reason(), None);
    let now_ms = work(&mut phone, 30.0, 20);
    assert_eq!(phone.reason(), Some(PauseReason::Hot { minutes: 3 }));
    assert!(words::pause(PauseReason::Hot { minutes: 1 }).contains("1 more minute."));
    assert_eq!(after(&mut phone, now_ms, Input::Set(Change::HeedsHeat(false))), None);
    assert!(matches!(
        after(&mut phone, now_ms, Input::Set(Change::HeedsHeat(true))),
        Some(PauseReason::Hot { .. })
    ));
    let later_ms = now_ms + 180_000.0;
    after(&mut phone, later_ms, Input::Clock(NOON));
    assert_eq!(after(&mut phone, later_ms + STEADY_MS, Input::Clock(NOON)), None);
}

#[test]
fn a_rest_is_written_down_once_and_a_reload_does_not_end_it() {
    let mut phone = content_phone();
    let mut now_ms = 0.0;
    let mut written = Vec::new();
    for milliseconds in [10.0, 30.0] {
        for _ in 0..150 {
            now_ms += 200.0;
            phone.on_work(now_ms, 0, Some(PassTime { n_samples: 8, milliseconds }));
            written.extend(phone.write_rest(now_ms));
        }
    }
    let [LimitsRequest::WriteRest { milliseconds: left_ms }] = written[..] else { panic!("{written:?}") };
    assert!(left_ms > 170_000.0 && left_ms <= 180_000.0, "{left_ms}");
    let mut phone =
        ResourceLimits::new(PHONE, Settings::of(PHONE), DataUsage::default(), NOON).resting(0.0, left_ms);
    phone.on_input(0.0, Input::Battery(PLUGGED), false);
    phone.on_wanted(0.0, true);
    assert_eq!(phone.reason(), Some(PauseReason::Hot { minutes: 3 }));
    assert_eq!(after(&mut phone, left_ms + 1.0, Input::Clock(NOON)), Some(PauseReason::Steadying));
}

#[test]
fn the_cap_holds_over_reloads_until_midnight_or_until_it_is_waived() {
    let mut phone = content_phone();
    let day = NOON.day;
    assert_eq!(phone.on_work(0.0, 100_000_000, None), Some(LimitsRequest::Write { day, bytes: 100_000_000 }));
    assert_eq!(phone.on_work(0.0, 100_001_000, None), None, "little is written at the next tick");
    assert_eq!(phone.on_input(0.0, Input::Clock(NOON), true), [LimitsRequest::Write { day, bytes: 1000 }]);
    // A reload: the worker counts from zero, and its program came again.
    let mut written = DataUsage::default().with(day, 100_001_000);
    let mut phone = ResourceLimits::new(PHONE, Settings::of(PHONE), written, NOON);
    phone.on_worker();
    phone.on_received(2_000_000);
    phone.on_wanted(0.0, true);
    assert_eq!(phone.bytes_today(), 102_001_000);
    let Some(LimitsRequest::Write { bytes, .. }) = phone.on_work(0.0, 148_000_000, None) else {
        panic!("much is written")
    };
    written = written.with(day, bytes);
    assert_eq!(phone.reason(), Some(PauseReason::Cap { mb: 250 }));
    assert!(words::pause(phone.reason().unwrap()).contains("250 MB"));
    // Another reload does not help, leave does, for a day.
    let mut phone = ResourceLimits::new(PHONE, Settings::of(PHONE), written, NOON);
    phone.on_wanted(0.0, true);
    assert_eq!(phone.reason(), Some(PauseReason::Cap { mb: 250 }));
    assert_eq!(phone.on_input(0.0, Input::Waive, true), [LimitsRequest::WriteWaiver { day }]);
    assert_eq!(phone.reason(), None);
    phone.on_work(0.0, 300_000_000, None);
    assert_eq!(phone.reason(), None);
    // Midnight: nothing is used, and nothing is waived.
    let midnight = LocalTime { day: day + 1, minute: 0 };
    phone.on_input(1.0, Input::Clock(midnight), true);
    assert_eq!((phone.bytes_today(), phone.reason()), (0, None));
    phone.on_work(2.0, 600_000_000, None);
    assert_eq!(phone.reason(), Some(PauseReason::Cap { mb: 250 }));
    assert_eq!(after(&mut phone, 2.0, Input::Set(Change::CapMb(Some(500)))), None);
}

#[test]
fn what_was_not_written_before_midnight_is_of_the_day_before() {
    let mut phone = content_phone();
    phone.on_work(0.0, 1000, None);
    let midnight = LocalTime { day: NOON.day + 1, minute: 0 };
    assert_eq!(
        phone.on_input(1.0, Input::Clock(midnight), true),
        [LimitsRequest::Write { day: NOON.day, bytes: 1000 }]
    );
    assert_eq!(phone.bytes_today(), 0);
}

#[test]
fn the_visitor_pauses_and_goes_on_at_once() {
    let mut device = limits(COMPUTER);
    assert_eq!(after(&mut device, 0.0, Input::TogglePause), Some(PauseReason::Visitor));
    assert_eq!(after(&mut device, 0.0, Input::TogglePause), None);
    device.on_input(0.0, Input::TogglePause, true);
    device.on_wanted(0.0, false);
    device.on_wanted(0.0, true);
    assert_eq!(device.reason(), None, "who starts anew has not paused");
}

#[test]
fn what_stands_against_computing_is_known_while_the_visitor_pauses_and_ends_at_once() {
    let mut device = limits(COMPUTER);
    assert_eq!(after(&mut device, 0.0, Input::TogglePause), Some(PauseReason::Visitor));
    assert_eq!(device.obstacle(), None);
    let link = |is_metered| Input::Link(NetworkLink { is_metered, saves_data: false });
    assert_eq!(after(&mut device, 1.0, link(true)), Some(PauseReason::Visitor));
    assert_eq!(device.obstacle(), Some(PauseReason::Metered));
    device.on_input(2.0, Input::TogglePause, true);
    assert_eq!(after(&mut device, 3.0, link(false)), Some(PauseReason::Steadying));
    assert_eq!(device.obstacle(), None);
}

#[test]
fn the_screen_is_kept_on_only_at_work_and_in_sight() {
    let mut device = limits(COMPUTER);
    let keep = Input::Set(Change::KeepsScreenOn(true));
    assert_eq!(device.on_input(0.0, keep, true)[1..], [LimitsRequest::KeepScreenOn(true)]);
    assert_eq!(device.on_input(0.0, Input::Hidden(true), true), [LimitsRequest::KeepScreenOn(false)]);
    assert_eq!(device.on_input(0.0, Input::Hidden(false), true), [LimitsRequest::KeepScreenOn(true)]);
    assert_eq!(device.on_input(0.0, Input::TogglePause, true), [LimitsRequest::KeepScreenOn(false)]);
    assert_eq!(device.on_wanted(0.0, false), []);
}

#[test]
fn every_reason_says_why_and_what_then() {
    let low = |is_charging| PauseReason::BatteryLow { percent: 7, wanted: 15, is_charging };
    let opening = |days_ahead| PauseReason::Hours(Some(NextOpening { days_ahead, weekday: 4, minute: 5 }));
    let reasons = [
        PauseReason::Visitor,
        opening(0),
        opening(1),
        opening(4),
        opening(7),
        PauseReason::Hours(None),
        PauseReason::InUse,
        PauseReason::PresenceNotTold,
        PauseReason::Hidden,
        PauseReason::NotCharging,
        low(true),
        low(false),
        PauseReason::Hot { minutes: 3 },
        PauseReason::Metered,
        PauseReason::SavesData,
        PauseReason::Cap { mb: 250 },
    ];
    let mut said = std::collections::BTreeSet::new();
    for reason in reasons {
        let text = words::pause(reason);
        assert!(
            text.starts_with("Paused") && text.ends_with('.') && text.matches(". ").count() == 1,
            "{text}"
        );
        let cause = words::cause(reason);
        assert!(!cause.contains('.') && (reason == PauseReason::Visitor || text.contains(&cause)), "{cause}");
        assert!(said.insert(text), "{reason:?}");
    }
    for reason in [PauseReason::AskingBattery, PauseReason::Steadying, PauseReason::Elsewhere] {
        assert!(said.insert(words::pause(reason)));
    }
}

fn inputs() -> impl Strategy<Value = Input> {
    let battery = (any::<bool>(), 0.0_f32..=1.0)
        .prop_map(|(is_charging, level)| Input::Battery(Battery::Known { is_charging, level }));
    let link = (any::<bool>(), any::<bool>())
        .prop_map(|(is_metered, saves_data)| Input::Link(NetworkLink { is_metered, saves_data }));
    let presence = prop_oneof![Just(Presence::NotTold), Just(Presence::Here), Just(Presence::Away)];
    prop_oneof![
        battery,
        link,
        presence.prop_map(Input::Presence),
        any::<bool>().prop_map(Input::Hidden),
        (0_i32..3, 0_u16..1440).prop_map(|(day, minute)| Input::Clock(LocalTime { day, minute })),
        Just(Input::Battery(Battery::Unknown)),
    ]
}

proptest! {
    /// For any inputs at any rate: between two resumptions lies [`STEADY_MS`] at least.
    #[test]
    fn flickering_inputs_do_not_make_it_flap(
        steps in prop::collection::vec((inputs(), 1.0_f64..3000.0), 1..200),
        is_phone in any::<bool>(),
        only_away in any::<bool>(),
        is_scheduled in any::<bool>(),
    ) {
        let mut device = limits(Hardware { is_phone, is_small: false });
        device.on_input(0.0, Input::Set(Change::OnlyAway(only_away)), true);
        device.on_input(0.0, Input::Set(Change::IsScheduled(is_scheduled)), true);
        let (mut now_ms, mut paused_at_ms) = (0.0, None);
        for (input, wait_ms) in steps {
            now_ms += wait_ms;
            let was_paused = device.reason().is_some();
            device.on_input(now_ms, input, true);
            match (was_paused, device.reason().is_some()) {
                (false, true) => paused_at_ms = Some(now_ms),
                (true, false) => {
                    let pause_ms = paused_at_ms.map_or(f64::INFINITY, |at_ms| now_ms - at_ms);
                    prop_assert!(pause_ms >= STEADY_MS, "{pause_ms} ms");
                }
                _ => {}
            }
        }
    }

    /// A level that trembles around a threshold pauses once and goes on once.
    #[test]
    fn a_trembling_level_is_one_pause(noise in prop::collection::vec(-0.02_f32..0.02, 100)) {
        let mut laptop = limits(COMPUTER);
        let (mut n_pauses, mut now_ms) = (0, 0.0);
        let falling = (0..50).map(|step| 0.5 - 0.2 * step as f32 / 50.0);
        let rising = (0..50).map(|step| 0.3 + 0.3 * step as f32 / 50.0);
        for (level, noise) in falling.chain(rising).zip(noise) {
            now_ms += 10_000.0;
            let was_paused = laptop.reason().is_some();
            laptop.on_input(now_ms, unplugged(level + noise), true);
            n_pauses += u32::from(!was_paused && laptop.reason().is_some());
        }
        prop_assert_eq!(n_pauses, 1);
        prop_assert_eq!(laptop.reason(), None);
    }
}
