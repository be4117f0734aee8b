//! Controls of the resource limits.

use std::rc::Rc;

use wasm_bindgen::JsCast;
use web_sys::{EventTarget, HtmlInputElement, HtmlSelectElement};

use super::on;
use crate::app::App;
use crate::dom::{DomError, by_id};
use crate::limits::{BatteryRule, Change, Input, minute_of};
use crate::sensors::Sensors;
use crate::state::PageEvent;

/// Listens for as long as the page is open.
pub(super) fn listen(app: &Rc<App>, sensors: &Rc<Sensors>) -> Result<(), DomError> {
    press(app, "pause", Input::TogglePause)?;
    press(app, "anyway", Input::Waive)?;
    press(app, "limits-defaults", Input::Set(Change::Defaults))?;
    check(app, "heeds-heat", Change::HeedsHeat)?;
    check(app, "on-metered", Change::OnMetered)?;
    check(app, "scheduled", Change::IsScheduled)?;
    check(app, "in-background", Change::InBackground)?;
    check(app, "screen-on", Change::KeepsScreenOn)?;
    listen_to_presence(app, sensors)?;
    listen_to_days(app)?;
    input(app, "throttle", "input", |text| text.parse().ok().map(Change::Duty))?;
    // A partly typed time is ignored.
    input(app, "hours-from", "change", |text| minute_of(text).map(Change::From))?;
    input(app, "hours-until", "change", |text| minute_of(text).map(Change::Until))?;
    select(app, "data-cap", |text| Change::CapMb(text.parse().ok()))?;
    select(app, "battery-rule", |text| {
        let rule = BatteryRule::ALL.into_iter().find(|rule| rule.name() == text);
        Change::Battery(rule.unwrap_or(BatteryRule::Charging))
    })
}

fn set(app: &Rc<App>, change: Change) {
    app.dispatch(PageEvent::Limits(Input::Set(change)));
}

fn press(app: &Rc<App>, id: &'static str, input: Input) -> Result<(), DomError> {
    on(&by_id::<EventTarget>(id)?, "click", app, move |app, _| app.dispatch(PageEvent::Limits(input)));
    Ok(())
}

fn check(app: &Rc<App>, id: &'static str, change: impl Fn(bool) -> Change + 'static) -> Result<(), DomError> {
    let field: HtmlInputElement = by_id(id)?;
    let read = field.clone();
    on(&field, "change", app, move |app, _| set(app, change(read.checked())));
    Ok(())
}

fn input(
    app: &Rc<App>,
    id: &'static str,
    event: &'static str,
    change: impl Fn(&str) -> Option<Change> + 'static,
) -> Result<(), DomError> {
    let field: HtmlInputElement = by_id(id)?;
    let read = field.clone();
    on(&field, event, app, move |app, _| {
        if let Some(change) = change(&read.value()) {
            set(app, change);
        }
    });
    Ok(())
}

fn select(
    app: &Rc<App>,
    id: &'static str,
    change: impl Fn(&str) -> Change + 'static,
) -> Result<(), DomError> {
    let field: HtmlSelectElement = by_id(id)?;
    let read = field.clone();
    on(&field, "change", app, move |app, _| set(app, change(&read.value())));
    Ok(())
}

/// The browser may ask for the permission only within a click.
fn listen_to_presence(app: &Rc<App>, sensors: &Rc<Sensors>) -> Result<(), DomError> {
    let field: HtmlInputElement = by_id("only-away")?;
    let (read, sensors) = (field.clone(), Rc::clone(sensors));
    on(&field, "change", app, move |app, _| {
        if read.checked() {
            sensors.ask_for_presence(app);
        }
        set(app, Change::OnlyAway(read.checked()));
    });
    Ok(())
}

fn listen_to_days(app: &Rc<App>) -> Result<(), DomError> {
    on(&by_id::<EventTarget>("days")?, "change", app, |app, event| {
        let field = event.target().and_then(|target| target.dyn_into::<HtmlInputElement>().ok());
        let day = field.as_ref().and_then(|field| field.get_attribute("data-day")?.parse().ok());
        if let Some((field, day)) = field.zip(day) {
            set(app, Change::Day(day, field.checked()));
        }
    });
    Ok(())
}
