//! Texts of hosting experts: the button, and how it goes. Pure.

use barnraise_messages::HostedWork;

use super::{Sentence, loading};
use crate::format;
use crate::limits::words;
use crate::state::{HostingEnd, HostingStatus, PageState};

/// Text of the button, and whether it can be pressed.
pub(crate) fn hosting_button(page: &PageState) -> (&'static str, bool) {
    match page.hosting.status {
        HostingStatus::Off | HostingStatus::Ended { .. } => {
            ("Host experts", page.against_hosting().is_none())
        }
        HostingStatus::Starting { .. } | HostingStatus::Serving { .. } => ("Stop hosting", true),
        HostingStatus::Ending { .. } => ("Handing over…", false),
    }
}

/// How it goes. Empty while nothing is to be said.
pub(crate) fn hosting_sentence(page: &PageState) -> Sentence {
    let work = &page.hosting.work;
    match &page.hosting.status {
        HostingStatus::Off => {
            Sentence::new("off", page.against_hosting().as_ref().and_then(not_now).unwrap_or_default())
        }
        HostingStatus::Starting { bytes, bytes_total } => loading(page, *bytes, *bytes_total),
        HostingStatus::Serving { problem: Some(problem) } => {
            let problem = format::reason(problem);
            let so_far = if moved(work) { format!(" So far: {}.", counts(work)) } else { String::new() };
            Sentence::new("waiting", format!("No expert is here at the moment: {problem}.{so_far}"))
                .spoken_as(format!("No expert is here at the moment: {problem}."))
        }
        HostingStatus::Serving { problem: None } if work.n_experts == 0 => {
            Sentence::new("looking", "Looking for experts that have no host…")
        }
        HostingStatus::Serving { problem: None } => {
            let experts = format::counted(work.n_experts.into(), "expert", "experts");
            let n_parameters = format::rough_count(work.n_parameters);
            let text = format!("Hosting {experts} ({n_parameters} parameters): {}.", counts(work));
            Sentence::new("hosting", text).spoken_as(format!("Hosting {experts}."))
        }
        HostingStatus::Ending { why, .. } => {
            let why = cause(why).map_or_else(String::new, |why| format!(", as {why}"));
            let text = format!(
                "Handing the experts over to other peers{why}. It takes a minute at most: keep this tab open."
            );
            Sentence::new("ending", text)
        }
        HostingStatus::Ended { causes } => {
            let in_words: Vec<String> = causes.iter().filter_map(cause).collect();
            let text = match in_words.is_empty() {
                true => "Hosting has ended. Thank you.".to_owned(),
                false => format!("Hosting has ended: {}.", in_words.join("; ")),
            };
            // What stands against it now may be something else.
            let now = page.against_hosting().filter(|now| !causes.contains(now));
            let now = now.as_ref().and_then(not_now).map_or_else(String::new, |now| format!(" {now}"));
            Sentence::new("ended", text + &now)
        }
    }
}

/// Why the button cannot be pressed.
fn not_now(why: &HostingEnd) -> Option<String> {
    cause(why).map(|cause| format!("Not now: {cause}."))
}

/// `None` where the visitor knows.
fn cause(why: &HostingEnd) -> Option<String> {
    match why {
        HostingEnd::Visitor => None,
        HostingEnd::Limits(reason) => Some(words::cause(*reason)),
        HostingEnd::OtherTab => Some("another tab of this browser took over".into()),
        HostingEnd::Overdue => Some("handing over took too long".into()),
        HostingEnd::Told(reason) => Some(format::reason(reason)),
        HostingEnd::Lost(reason) => Some(format::reason(&reason.to_string())),
    }
}

fn moved(work: &HostedWork) -> bool {
    work.n_forward > 0 || work.n_backward > 0
}

/// What was done for others.
fn counts(work: &HostedWork) -> String {
    format!(
        "{} computed and {} learned from for others; {} received, {} sent",
        format::counted(work.n_forward, "row", "rows"),
        format::count(work.n_backward),
        format::bytes(work.bytes_received),
        format::bytes(work.bytes_sent),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::limits::{Input, NetworkLink, PauseReason};
    use crate::state::{PageEvent, PeerLoss};

    const WORK: HostedWork = HostedWork {
        n_experts: 4,
        n_room: 4,
        n_parameters: 66_048,
        n_forward: 12_400,
        n_backward: 3_100,
        bytes_received: 31_000_000,
        bytes_sent: 30_000_000,
    };

    fn page(status: HostingStatus, work: HostedWork) -> PageState {
        let mut page = fixture::hosted_page();
        (page.hosting.status, page.hosting.work) = (status, work);
        page
    }

    fn said(status: HostingStatus, work: HostedWork) -> (&'static str, String) {
        let sentence = hosting_sentence(&page(status, work));
        (sentence.doing, sentence.text)
    }

    #[test]
    fn a_host_says_what_it_has_and_what_it_did_and_numbers_are_not_read_aloud() {
        let serving = || HostingStatus::Serving { problem: None };
        let text = "Hosting 4 experts (66 thousand parameters): 12,400 rows computed and 3,100 learned from for others; \
                    31.0 MB received, 30.0 MB sent.";
        assert_eq!(said(serving(), WORK), ("hosting", text.into()));
        assert_eq!(hosting_sentence(&page(serving(), WORK)).spoken, "Hosting 4 experts.");
        let (doing, text) = said(serving(), HostedWork::default());
        assert_eq!((doing, text.as_str()), ("looking", "Looking for experts that have no host…"));
    }

    #[test]
    fn a_host_without_experts_says_why() {
        let problem = || HostingStatus::Serving { problem: Some("all have a host".into()) };
        let none = HostedWork { n_experts: 0, ..WORK };
        let (doing, text) = said(problem(), none);
        assert_eq!(doing, "waiting");
        let begin = "No expert is here at the moment: all have a host. So far: 12,400 rows computed";
        assert!(text.starts_with(begin), "{text}");
        let (_, text) = said(problem(), HostedWork::default());
        assert_eq!(text, "No expert is here at the moment: all have a host.");
    }

    #[test]
    fn the_button_says_what_it_does_and_why_it_does_nothing() {
        let mut off = page(HostingStatus::Off, HostedWork::default());
        assert_eq!(hosting_button(&off), ("Host experts", true));
        assert_eq!(hosting_sentence(&off).text, "");
        let link = NetworkLink { is_metered: true, saves_data: false };
        off.on_event(0.0, PageEvent::Limits(Input::Link(link)));
        assert_eq!(hosting_button(&off), ("Host experts", false));
        assert_eq!(hosting_sentence(&off).text, "Not now: this is mobile data.");
        let starting = HostingStatus::Starting { bytes: 0, bytes_total: None };
        assert_eq!(hosting_button(&page(starting, HostedWork::default())), ("Stop hosting", true));
        let ending = HostingStatus::Ending { why: HostingEnd::Visitor, since_ms: 0.0 };
        assert_eq!(hosting_button(&page(ending, WORK)), ("Handing over…", false));
    }

    #[test]
    fn the_end_has_its_reasons() {
        let metered = HostingEnd::Limits(PauseReason::Metered);
        let (_, text) = said(HostingStatus::Ending { why: metered.clone(), since_ms: 0.0 }, WORK);
        assert!(
            text.starts_with("Handing the experts over to other peers, as this is mobile data."),
            "{text}"
        );
        let ended = |causes: &[HostingEnd]| said(HostingStatus::Ended { causes: causes.into() }, WORK).1;
        let thanks = "Hosting has ended. Thank you.";
        assert_eq!(ended(&[HostingEnd::Visitor]), thanks);
        assert_eq!(
            ended(&[metered.clone(), HostingEnd::Overdue]),
            "Hosting has ended: this is mobile data; handing over took too long."
        );
        let lost = HostingEnd::Lost(PeerLoss::of_words("RangeError: too much."));
        assert_eq!(ended(&[lost]), "Hosting has ended: too much.");
        // What stands against it is told once.
        let causes = vec![HostingEnd::Told("no backbone answers".into())];
        let mut page = page(HostingStatus::Ended { causes }, WORK);
        let link = NetworkLink { is_metered: true, saves_data: false };
        page.on_event(0.0, PageEvent::Limits(Input::Link(link)));
        let text = "Hosting has ended: no backbone answers. Not now: this is mobile data.";
        assert_eq!(hosting_sentence(&page).text, text);
        page.hosting.status = HostingStatus::Ended { causes: vec![metered] };
        assert_eq!(hosting_sentence(&page).text, "Hosting has ended: this is mobile data.");
    }
}
