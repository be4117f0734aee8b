//! The button, the status sentence, and this tab's contribution.

use barnraise_messages::CheckOutcome;
use web_sys::{Element, HtmlButtonElement};

use crate::dom::{DomError, Field, by_id, create, set_attribute};
use crate::format;
use crate::hold::Hold;
use crate::sentence::{connection_line, device_line, invitation_line, sentence, tabs_line};
use crate::state::{PageState, WorkerState};

/// Texts of the button.
const START: &str = "Start contributing";
const FINISH: &str = "Finish this batch and stop";
/// While there is no batch to finish.
const STOP: &str = "Stop";

pub(crate) struct TabView {
    toggle: HtmlButtonElement,
    toggle_text: Field,
    activity: Field,
    announcement: Field,
    device: Field,
    connection: Field,
    invitation: Field,
    invitation_text: Field,
    enter_code: Field,
    notice: Field,
    tabs: Field,
    renewal: Field,
    sign_in: Field,
    sign_in_link: Element,
    sign_in_peer: Field,
    samples: Field,
    speed: Field,
    accepted: Field,
    refused: Field,
    bytes_up: Field,
    bytes_down: Field,
    refusal: Field,
    checks: Field,
    checks_lead: Field,
    check_rows: Element,
    n_checks: Option<usize>,
    hold: Hold,
}

impl TabView {
    pub(crate) fn find() -> Result<Self, DomError> {
        Ok(Self {
            toggle: by_id("toggle")?,
            toggle_text: Field::find("toggle")?,
            activity: Field::find("activity")?,
            announcement: Field::find("announcement")?,
            device: Field::find("device")?,
            connection: Field::find("connection")?,
            invitation: Field::find("invitation")?,
            invitation_text: Field::find("invitation-text")?,
            enter_code: Field::find("enter-code")?,
            notice: Field::find("notice")?,
            tabs: Field::find("tabs")?,
            renewal: Field::find("renewal")?,
            sign_in: Field::find("sign-in")?,
            sign_in_link: by_id("sign-in-link")?,
            sign_in_peer: Field::find("sign-in-peer")?,
            samples: Field::find("samples")?,
            speed: Field::find("speed")?,
            accepted: Field::find("accepted")?,
            refused: Field::find("refused")?,
            bytes_up: Field::find("bytes-up")?,
            bytes_down: Field::find("bytes-down")?,
            refusal: Field::find("refusal")?,
            checks: Field::find("selfcheck-section")?,
            checks_lead: Field::find("selfcheck-lead")?,
            check_rows: by_id("selfcheck")?,
            n_checks: None,
            hold: Hold::default(),
        })
    }

    pub(crate) fn draw(&mut self, now_ms: f64, page: &PageState) -> Option<u32> {
        let is_paused = page.pause().is_some() || page.operator_pause.is_some();
        self.toggle_text.set_text(match page.contributing {
            true if page.is_in_touch() && !is_paused => FINISH,
            true => STOP,
            false => START,
        });
        let is_shut_out = page.lacks_invitation() && !page.contributing;
        self.toggle.set_disabled(!page.is_supported() || is_shut_out);
        set_attribute(&self.toggle, "data-contributing", if page.contributing { "true" } else { "false" });
        self.device.set_text(&device_line(page));
        // Until then the preflight shows the device.
        self.device.set_hidden(page.peer == WorkerState::Absent && page.is_supported());
        if let WorkerState::Ready { device, .. } = &page.peer {
            set_attribute(self.device.element(), "data-device", &crate::view::everyone::slug(*device));
        }
        self.connection.set_optional(connection_line(page).as_deref());
        if let Some((transport, _)) = &page.connection {
            set_attribute(self.connection.element(), "data-transport", &transport.to_string());
        }
        let asked_for = invitation_line(page);
        self.invitation.set_hidden(asked_for.is_none());
        self.invitation_text.set_text(asked_for.unwrap_or_default());
        self.enter_code.set_hidden(!page.may_enter_code());
        self.notice.set_optional(page.notice.as_deref());
        self.tabs.set_optional(tabs_line(page));
        self.renewal.set_hidden(!page.endurance.has_new_version);
        self.sign_in.set_hidden(page.sign_in_url().is_none());
        self.sign_in_peer.set_text(page.peer_id.as_deref().unwrap_or_default());
        set_attribute(&self.sign_in_link, "href", page.sign_in_url().unwrap_or_default());
        self.draw_contribution(page);
        self.draw_checks(page);
        self.draw_sentence(now_ms, page)
    }

    /// `data-doing` changes at once; the text stays long enough to be read.
    fn draw_sentence(&mut self, now_ms: f64, page: &PageState) -> Option<u32> {
        let sentence = sentence(page);
        set_attribute(self.activity.element(), "data-doing", sentence.doing);
        self.announcement.set_text(&sentence.spoken);
        let text = format::unbroken(&sentence.text);
        if self.activity.shows(&text) {
            return None;
        }
        match self.hold.admit(now_ms, sentence.doing, sentence.is_routine) {
            Ok(()) => {
                self.activity.set_text(&text);
                None
            }
            Err(remaining_ms) => Some(remaining_ms.ceil() as u32),
        }
    }

    fn draw_contribution(&mut self, page: &PageState) {
        let given = &page.contribution;
        self.samples.set_number(&format::count(given.n_samples_accepted), given.n_samples_accepted as f64);
        let is_at_work = page.contributing && page.pause().is_none() && given.samples_per_second > 0.0;
        let speed = if is_at_work { format::speed(given.samples_per_second) } else { "–".into() };
        self.speed.set_number(&speed, given.samples_per_second.into());
        self.accepted.set_number(&format::count(given.n_accepted), given.n_accepted as f64);
        self.refused.set_number(&format::count(given.n_refused), given.n_refused as f64);
        self.bytes_up.set_number(&format::bytes(given.bytes_up), given.bytes_up as f64);
        self.bytes_down.set_number(&format::bytes(given.bytes_down), given.bytes_down as f64);
        let newest = |reason: &String| format!("Newest refusal: {}.", format::reason(reason));
        let refusal = given.last_refusal.as_ref().map(newest);
        self.refusal.set_optional(refusal.as_deref());
    }

    fn draw_checks(&mut self, page: &PageState) {
        self.checks.set_hidden(!page.is_check_wanted());
        let Some((device, checks)) = &page.checks else { return };
        if self.n_checks.replace(checks.len()) == Some(checks.len()) {
            return;
        }
        let n_failed = checks.iter().filter(|check| !check.passed()).count();
        let outcome = match n_failed {
            0 => format!("All {} checks pass", checks.len()),
            n => format!("{n} of {} checks fail", checks.len()),
        };
        self.checks_lead.set_text(&format!("{outcome} ({}).", crate::view::everyone::name(*device)));
        self.check_rows.set_text_content(None);
        for check in checks {
            if let Ok(row) = check_row(check) {
                let _ = self.check_rows.append_child(&row);
            }
        }
    }
}

fn check_row(check: &CheckOutcome) -> Result<Element, DomError> {
    let row: Element = create("tr")?;
    row.set_attribute("data-name", &check.name)?;
    row.set_attribute("data-deviation", &check.deviation.to_string())?;
    row.set_attribute("data-tolerance", &check.tolerance.to_string())?;
    let passed = if check.passed() { "pass" } else { "fail" };
    let texts = [
        check.name.clone(),
        format!("{:.1e}", check.deviation),
        format!("{:.1e}", check.tolerance),
        passed.into(),
    ];
    for text in texts {
        let cell: Element = create("td")?;
        cell.set_text_content(Some(&text));
        row.append_child(&cell)?;
    }
    Ok(row)
}
