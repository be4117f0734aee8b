//! The settings of the resource limits, with the browser's state.

use web_sys::{Element, HtmlInputElement, HtmlSelectElement};

use crate::dom::{DomError, Field, by_id, create, network_information, set_attribute};
use crate::format;
use crate::limits::{
    BatteryRule, CAPS_MB, DAYS, PauseReason, Presence, ResourceLimits, ScreenLock, Settings, clock, words,
};
use crate::state::PageState;

/// A checkbox, and its setting.
type Check = (HtmlInputElement, fn(Settings) -> bool);

pub(crate) struct LimitsView {
    panel: Element,
    summary: Field,
    also: Field,
    pause: Field,
    anyway: Field,
    take_over: Field,
    throttle: HtmlInputElement,
    throttle_text: Field,
    battery: HtmlSelectElement,
    battery_note: Field,
    cap: HtmlSelectElement,
    data: Field,
    checks: [Check; 6],
    hours: Field,
    from: HtmlInputElement,
    until: HtmlInputElement,
    days: Vec<HtmlInputElement>,
    only_away: HtmlInputElement,
    presence_note: Field,
    screen_on: HtmlInputElement,
    screen_note: Field,
    drawn: Option<Settings>,
}

impl LimitsView {
    pub(crate) fn find() -> Result<Self, DomError> {
        let checks: [Check; 6] = [
            (by_id("heeds-heat")?, |settings| settings.heeds_heat),
            (by_id("on-metered")?, |settings| settings.on_metered),
            (by_id("scheduled")?, |settings| settings.is_scheduled),
            (by_id("in-background")?, |settings| settings.in_background),
            (by_id("only-away")?, |settings| settings.only_away),
            (by_id("screen-on")?, |settings| settings.keeps_screen_on),
        ];
        let days: Element = by_id("days")?;
        let (battery, cap) = (by_id("battery-rule")?, by_id("data-cap")?);
        offer(&battery, BatteryRule::ALL.map(|rule| (rule.name().into(), words::battery_rule(rule).into())))?;
        let megabytes = |mb: u32| (mb.to_string(), format::megabytes(mb));
        offer(&cap, CAPS_MB.map(megabytes).into_iter().chain([(String::new(), "No limit".into())]))?;
        Field::find("link-note")?.set_optional(words::link_note(network_information().is_some()));
        Ok(Self {
            panel: by_id("limits")?,
            summary: Field::find("limits-summary")?,
            also: Field::find("also")?,
            pause: Field::find("pause")?,
            anyway: Field::find("anyway")?,
            take_over: Field::find("take-over")?,
            throttle: by_id("throttle")?,
            throttle_text: Field::find("throttle-text")?,
            battery,
            battery_note: Field::find("battery-note")?,
            cap,
            data: Field::find("data-note")?,
            checks,
            hours: Field::find("hours")?,
            from: by_id("hours-from")?,
            until: by_id("hours-until")?,
            days: DAYS
                .iter()
                .zip(0..)
                .map(|(name, day)| add_day(&days, name, day))
                .collect::<Result<_, _>>()?,
            only_away: by_id("only-away")?,
            presence_note: Field::find("presence-note")?,
            screen_on: by_id("screen-on")?,
            screen_note: Field::find("screen-note")?,
            drawn: None,
        })
    }

    pub(crate) fn draw(&mut self, page: &PageState) {
        let (limits, reason) = (&page.limits, page.pause());
        set_attribute(&self.panel, "data-reason", reason.map_or("", PauseReason::name));
        set_attribute(&self.panel, "data-gentle", if limits.pacing().is_gentle { "true" } else { "false" });
        self.summary.set_text(&words::summary(limits));
        self.also.set_hidden(!page.contributing);
        // The button ends only the visitor's own pause.
        self.pause.set_text(if reason == Some(PauseReason::Visitor) { "Go on" } else { "Pause" });
        self.anyway.set_hidden(!matches!(reason, Some(PauseReason::Cap { .. })));
        self.take_over.set_hidden(reason != Some(PauseReason::Elsewhere));
        self.data.set_number(&words::data_note(limits), limits.bytes_today() as f64);
        self.battery_note.set_text(&words::battery_note(limits.battery));
        self.draw_settings(limits);
        let (settings, presence, lock) = (limits.settings(), limits.presence, limits.screen_lock);
        self.only_away.set_disabled(presence == Presence::NotInBrowser);
        self.presence_note.set_optional(words::presence_note(settings, presence));
        self.screen_on.set_disabled(lock == ScreenLock::NotInBrowser);
        self.screen_note.set_optional(words::screen_note(lock));
    }

    /// Draws changed settings only, so that a visitor who moves the slider is not disturbed.
    fn draw_settings(&mut self, limits: &ResourceLimits) {
        let settings = limits.settings();
        if self.drawn.replace(settings) == Some(settings) {
            return;
        }
        self.throttle.set_value(&settings.duty.percent().to_string());
        self.throttle_text.set_text(&format!("{} %", settings.duty.percent()));
        self.battery.set_value(settings.battery.name());
        self.cap.set_value(&settings.cap_mb.map(|mb| mb.to_string()).unwrap_or_default());
        for (field, is_on) in &self.checks {
            field.set_checked(is_on(settings));
        }
        self.hours.set_hidden(!settings.is_scheduled);
        let (from, until) = settings.schedule.hours();
        self.from.set_value(&clock(from));
        self.until.set_value(&clock(until));
        for (field, day) in self.days.iter().zip(0..) {
            field.set_checked(settings.schedule.has_day(day));
        }
    }
}

/// Adds options with their labels.
fn offer(
    field: &HtmlSelectElement,
    options: impl IntoIterator<Item = (String, String)>,
) -> Result<(), DomError> {
    for (value, text) in options {
        let option: Element = create("option")?;
        option.set_attribute("value", &value)?;
        option.set_text_content(Some(&text));
        field.append_child(&option)?;
    }
    Ok(())
}

/// A checkbox labelled `Mo`, read aloud as Monday.
fn add_day(days: &Element, name: &'static str, day: u8) -> Result<HtmlInputElement, DomError> {
    let (label, field): (Element, HtmlInputElement) = (create("label")?, create("input")?);
    field.set_type("checkbox");
    field.set_attribute("data-day", &day.to_string())?;
    field.set_attribute("aria-label", name)?;
    let short: Element = create("span")?;
    short.set_text_content(name.get(..2));
    label.append_child(&field)?;
    label.append_child(&short)?;
    days.append_child(&label)?;
    Ok(field)
}
