//! Asks a backbone over HTTP, in threads of its own: the run, what changes in it, who gave what, what is counted.
//!
//! Each thread tries again for ever, and ends with whoever listens to it. Nothing is read without a limit.

use std::io::{BufRead as _, BufReader, Read as _};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use barnraise_protocol::api::{Contributions, LiveProgress, RunStatus, Runs};
use serde::de::DeserializeOwned;

use super::metrics::Metrics;
use super::state::Heard;

/// News that may wait; whoever asks faster than is drawn waits.
const NEWS_MAX: usize = 64;
/// Of an answer that ends.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Of the stream of events, which is begun again then: a connection that died unnoticed says nothing for ever.
const STREAM_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two tries, and between two looks at what is not a stream.
const AGAIN_AFTER: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 2000 });
/// Largest answer, and most bytes of one stream of events.
const ANSWER_BYTES_MAX: u64 = 8 * 1024 * 1024;
const STREAM_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Longest line of an event.
const LINE_BYTES_MAX: u64 = 1024 * 1024;
/// Contributors that are listed.
const CONTRIBUTORS: u32 = 20;

/// Threads that ask; they end some time after this is dropped.
#[derive(Debug)]
pub(super) struct Asking(Receiver<Heard>);

impl Asking {
    /// Asks the page, and the operator's page if there is one.
    pub(super) fn start(page: String, operator: Option<String>) -> Self {
        let (news, heard) = sync_channel(NEWS_MAX);
        let (events, contributors) = (news.clone(), news.clone());
        let of_page = page.clone();
        std::thread::spawn(move || follow(&of_page, &events));
        std::thread::spawn(move || {
            // Where nobody keeps them there is nothing to say.
            again_and_again(&contributors, || contributions(&page).ok());
        });
        if let Some(operator) = operator {
            std::thread::spawn(move || again_and_again(&news, || Some(metrics(&operator))));
        }
        Self(heard)
    }

    /// What was heard since the last time.
    pub(super) fn news(&self) -> impl Iterator<Item = Heard> {
        self.0.try_iter()
    }
}

/// Each of them once, as far as they answer.
pub(super) fn once(page: &str, operator: Option<&str>, timeout: Duration) -> Vec<Heard> {
    let run = status(page, timeout).unwrap_or_else(Heard::Trouble);
    let contributions = contributions(page).ok();
    [run].into_iter().chain(contributions).chain(operator.map(metrics)).collect()
}

/// The run, and what changes in it, until nobody listens.
fn follow(page: &str, news: &SyncSender<Heard>) {
    loop {
        let heard = status(page, TIMEOUT).unwrap_or_else(Heard::Trouble);
        let is_there = matches!(heard, Heard::Run(_));
        if news.send(heard).is_err() {
            return;
        }
        let ended = if is_there { events(page, news) } else { Ok(false) };
        match ended {
            Ok(true) => continue,
            Ok(false) => {}
            Err(Ended::NobodyListens) => return,
            Err(Ended::Broken(reason)) => {
                if news.send(Heard::Trouble(reason)).is_err() {
                    return;
                }
            }
        }
        std::thread::sleep(AGAIN_AFTER);
    }
}

fn again_and_again(news: &SyncSender<Heard>, ask: impl Fn() -> Option<Heard>) {
    loop {
        if let Some(heard) = ask()
            && news.send(heard).is_err()
        {
            return;
        }
        std::thread::sleep(AGAIN_AFTER);
    }
}

fn status(page: &str, timeout: Duration) -> Result<Heard, String> {
    let url = format!("{page}/api/run");
    let asked = json::<RunStatus>(&url, timeout).map(|status| Heard::Run(Box::new(status)));
    asked.map_err(|error| several(page, timeout).filter(|_| error.contains("404")).unwrap_or(error))
}

/// What to look at instead, where the address is that of several runs.
fn several(page: &str, timeout: Duration) -> Option<String> {
    let Runs { runs, .. } = json(&format!("{page}/api/runs"), timeout).ok()?;
    let one: Vec<String> = runs.iter().map(|run| format!("{page}/run/{}", run.id)).collect();
    let which = if one.is_empty() { format!("{page}/run/<id>") } else { one.join(" or ") };
    Some(format!("several runs are at {page}: look at one of them, {which}"))
}

fn contributions(page: &str) -> Result<Heard, String> {
    let url = format!("{page}/api/contributions?limit={CONTRIBUTORS}");
    json::<Contributions>(&url, TIMEOUT).map(Heard::Contributions)
}

fn metrics(operator: &str) -> Heard {
    let text = get(&format!("{operator}/metrics"), TIMEOUT)
        .and_then(|body| String::from_utf8(body).map_err(|_| format!("{operator}/metrics is not UTF-8")));
    text.map_or_else(Heard::OperatorTrouble, |text| Heard::Metrics(Metrics::parse(&text)))
}

/// Why a stream of events came to its end.
enum Ended {
    NobodyListens,
    Broken(String),
}

/// What changes, until it is time to look at all of it again, which is `true`.
fn events(page: &str, news: &SyncSender<Heard>) -> Result<bool, Ended> {
    let url = format!("{page}/api/events");
    let answer = agent(STREAM_TIMEOUT).get(&url).call();
    let answer = answer.map_err(|error| Ended::Broken(unreachable(&url, &error)))?;
    let reader = answer.into_body().into_with_config().limit(STREAM_BYTES_MAX).reader();
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    loop {
        line.clear();
        // A line that is cut by its limit is no JSON, and skipped.
        match reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) => return Err(Ended::Broken(format!("{page} ended the stream of events"))),
            // The timeout of this side, as a rule.
            Err(_) => return Ok(true),
            Ok(_) => {}
        }
        let live =
            line.strip_prefix(b"data:").and_then(|data| serde_json::from_slice::<LiveProgress>(data).ok());
        if let Some(live) = live
            && news.send(Heard::Live(live)).is_err()
        {
            return Err(Ended::NobodyListens);
        }
    }
}

fn json<T: DeserializeOwned>(url: &str, timeout: Duration) -> Result<T, String> {
    let body = get(url, timeout)?;
    serde_json::from_slice(&body)
        .map_err(|error| format!("{url} is not what this version understands: {error}"))
}

fn get(url: &str, timeout: Duration) -> Result<Vec<u8>, String> {
    let answer = agent(timeout).get(url).call().map_err(|error| unreachable(url, &error))?;
    let body = answer.into_body().into_with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
    body.map_err(|error| unreachable(url, &error))
}

fn agent(timeout: Duration) -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(timeout))
        .user_agent(concat!("barnraise/", env!("CARGO_PKG_VERSION")));
    config.build().into()
}

fn unreachable(url: &str, error: &ureq::Error) -> String {
    format!("cannot reach {url}: {error}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    use super::super::state::tests::{contributions as given, progress, status as described};
    use super::*;

    /// Answers `n` requests, then hangs up.
    fn serve(n_requests: usize) -> (String, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let serving = std::thread::spawn(move || {
            for _ in 0..n_requests {
                answer(listener.accept().unwrap().0);
            }
        });
        (address, serving)
    }

    fn answer(mut stream: TcpStream) {
        let mut line = String::new();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        reader.read_line(&mut line).unwrap();
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).unwrap();
            if header == "\r\n" {
                break;
            }
        }
        let live = LiveProgress {
            progress: progress(21),
            steps: vec![],
            evaluation: None,
            devices: vec![],
            paused: None,
        };
        let body = match line.split(' ').nth(1).unwrap() {
            "/api/run" => serde_json::to_string(&described()).unwrap(),
            "/api/events" => {
                format!(": hello\n\nevent: progress\ndata: {}\n\n", serde_json::to_string(&live).unwrap())
            }
            "/metrics" => "barnraise_epoch 21.0\n# EOF\n".into(),
            path if path.starts_with("/api/contributions?limit=") => serde_json::to_string(&given()).unwrap(),
            path => panic!("nobody asks for {path}"),
        };
        let length = body.len();
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
            .unwrap();
    }

    #[test]
    fn each_is_asked_once() {
        let (address, serving) = serve(3);
        let heard = once(&address, Some(&address), TIMEOUT);
        assert!(
            matches!(&heard[..], [Heard::Run(_), Heard::Contributions(_), Heard::Metrics(_)]),
            "{heard:?}"
        );
        serving.join().unwrap();
    }

    #[test]
    fn changes_are_heard_and_an_end_is_told() {
        let (address, serving) = serve(2);
        let (news, heard) = sync_channel(NEWS_MAX);
        // The third question is answered by nobody: it is told, and the listener is gone then.
        let following = std::thread::spawn(move || follow(&address, &news));
        assert!(matches!(heard.recv().unwrap(), Heard::Run(_)));
        let Heard::Live(live) = heard.recv().unwrap() else { panic!("a change is wanted") };
        assert_eq!(live.progress.epoch, 21);
        let Heard::Trouble(reason) = heard.recv().unwrap() else { panic!("the end is wanted") };
        assert!(reason.contains("ended the stream"), "{reason}");
        serving.join().unwrap();
        assert!(matches!(heard.recv().unwrap(), Heard::Trouble(_)), "nobody answers");
        drop(heard);
        following.join().unwrap();
    }
}
