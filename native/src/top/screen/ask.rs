//! Polls a backbone over HTTP, on separate threads: status of the run, live events, contributions and metrics.
//!
//! Each thread retries for ever, and ends when the receiver is dropped. All answers are bounded.

use std::io::{BufRead as _, BufReader, Read as _};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use barnraise_protocol::api::{Contributions, LiveProgress, RunStatus, Runs};
use serde::de::DeserializeOwned;

use super::error::AskError;
use super::metrics::Metrics;
use super::state::TopEvent;
use crate::http_agent::{Patience, agent};

/// Capacity of the channel of events; a polling thread waits while it is full.
const NEWS_MAX: usize = 64;
/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of the event stream, which is then opened again: a connection that died unnoticed would be silent for ever.
const STREAM_TIMEOUT: Duration = Duration::from_secs(60);
/// Delay before a retry, and between two requests for contributions or metrics.
const AGAIN_AFTER: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 2000 });
/// Largest answer, and most bytes of one stream of events.
const ANSWER_BYTES_MAX: u64 = 8 * 1024 * 1024;
const STREAM_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Longest line of an event.
const LINE_BYTES_MAX: u64 = 1024 * 1024;
/// Number of contributors to list.
const CONTRIBUTORS: u32 = 20;

/// The polling threads; they end some time after this is dropped.
#[derive(Debug)]
pub(super) struct Poller(Receiver<TopEvent>);

impl Poller {
    /// Starts polling the page, and the operator's page if there is one.
    pub(super) fn start(page: String, operator: Option<String>) -> Self {
        let (news, heard) = sync_channel(NEWS_MAX);
        let (events, contributors) = (news.clone(), news.clone());
        let of_page = page.clone();
        std::thread::spawn(move || follow(&of_page, &events));
        std::thread::spawn(move || {
            // An error may mean that the backbone records no contributions.
            again_and_again(&contributors, || contributions(&page).ok());
        });
        if let Some(operator) = operator {
            std::thread::spawn(move || again_and_again(&news, || Some(metrics(&operator))));
        }
        Self(heard)
    }

    /// The events since the last call.
    pub(super) fn news(&self) -> impl Iterator<Item = TopEvent> {
        self.0.try_iter()
    }
}

/// Polls each address once; of contributions that cannot be read there is no event.
pub(super) fn once(page: &str, operator: Option<&str>, timeout: Duration) -> Vec<TopEvent> {
    let run = status(page, timeout).unwrap_or_else(TopEvent::Trouble);
    let contributions = contributions(page).ok();
    [run].into_iter().chain(contributions).chain(operator.map(metrics)).collect()
}

/// Sends the status of the run, then its live events, until the receiver is dropped.
fn follow(page: &str, news: &SyncSender<TopEvent>) {
    loop {
        let heard = status(page, TIMEOUT).unwrap_or_else(TopEvent::Trouble);
        let is_there = matches!(heard, TopEvent::Run(_));
        if news.send(heard).is_err() {
            return;
        }
        let ended = if is_there { events(page, news) } else { Ok(false) };
        match ended {
            Ok(true) => continue,
            Ok(false) => {}
            Err(EventStreamEnd::NobodyListens) => return,
            Err(EventStreamEnd::Broken(error)) => {
                if news.send(TopEvent::Trouble(error)).is_err() {
                    return;
                }
            }
        }
        std::thread::sleep(AGAIN_AFTER);
    }
}

fn again_and_again(news: &SyncSender<TopEvent>, ask: impl Fn() -> Option<TopEvent>) {
    loop {
        if let Some(heard) = ask()
            && news.send(heard).is_err()
        {
            return;
        }
        std::thread::sleep(AGAIN_AFTER);
    }
}

fn status(page: &str, timeout: Duration) -> Result<TopEvent, AskError> {
    let url = format!("{page}/api/run");
    let asked = json::<RunStatus>(&url, timeout).map(|status| TopEvent::Run(Box::new(status)));
    asked.map_err(|error| match error.is_not_found() {
        true => several(page, timeout).unwrap_or(error),
        false => error,
    })
}

/// An error that lists the addresses of the runs, where the address has several.
fn several(page: &str, timeout: Duration) -> Option<AskError> {
    let Runs { runs, .. } = json(&format!("{page}/api/runs"), timeout).ok()?;
    let run_ids = runs.into_iter().map(|run| run.id).collect();
    Some(AskError::SeveralRuns { page: page.to_owned(), run_ids })
}

fn contributions(page: &str) -> Result<TopEvent, AskError> {
    let url = format!("{page}/api/contributions?limit={CONTRIBUTORS}");
    json::<Contributions>(&url, TIMEOUT).map(TopEvent::Contributions)
}

fn metrics(operator: &str) -> TopEvent {
    let url = format!("{operator}/metrics");
    let text =
        get(&url, TIMEOUT).and_then(|body| String::from_utf8(body).map_err(|_| AskError::NotUtf8 { url }));
    text.map_or_else(TopEvent::OperatorTrouble, |text| TopEvent::Metrics(Metrics::parse(&text)))
}

/// Why the event stream ended.
enum EventStreamEnd {
    NobodyListens,
    Broken(AskError),
}

/// Sends live events until the stream times out; the status is to be read again then. Returns `true`.
fn events(page: &str, news: &SyncSender<TopEvent>) -> Result<bool, EventStreamEnd> {
    let url = format!("{page}/api/events");
    let answer = agent(Patience::Whole(STREAM_TIMEOUT)).get(&url).call();
    let answer = answer.map_err(|error| EventStreamEnd::Broken(AskError::unreachable(&url, error)))?;
    let reader = answer.into_body().into_with_config().limit(STREAM_BYTES_MAX).reader();
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    loop {
        line.clear();
        // A line that is cut by its limit is no JSON, and skipped.
        match reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) => return Err(EventStreamEnd::Broken(AskError::StreamEnded { page: page.to_owned() })),
            // Usually the timeout of this side.
            Err(_) => return Ok(true),
            Ok(_) => {}
        }
        let live =
            line.strip_prefix(b"data:").and_then(|data| serde_json::from_slice::<LiveProgress>(data).ok());
        if let Some(live) = live
            && news.send(TopEvent::Live(live)).is_err()
        {
            return Err(EventStreamEnd::NobodyListens);
        }
    }
}

fn json<T: DeserializeOwned>(url: &str, timeout: Duration) -> Result<T, AskError> {
    let body = get(url, timeout)?;
    serde_json::from_slice(&body).map_err(|source| AskError::NotUnderstood { url: url.to_owned(), source })
}

fn get(url: &str, timeout: Duration) -> Result<Vec<u8>, AskError> {
    let answer =
        agent(Patience::Whole(timeout)).get(url).call().map_err(|error| AskError::unreachable(url, error))?;
    let body = answer.into_body().into_with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
    body.map_err(|error| AskError::unreachable(url, error))
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
        let heard = once(&address, Some(&address), Duration::from_secs(60));
        assert!(
            matches!(&heard[..], [TopEvent::Run(_), TopEvent::Contributions(_), TopEvent::Metrics(_)]),
            "{heard:?}"
        );
        serving.join().unwrap();
    }

    #[test]
    fn live_events_and_the_end_of_their_stream_are_reported() {
        let (address, serving) = serve(2);
        let (news, heard) = sync_channel(NEWS_MAX);
        // The third request has no server: the error is reported, then the receiver is dropped.
        let following = std::thread::spawn(move || follow(&address, &news));
        assert!(matches!(heard.recv().unwrap(), TopEvent::Run(_)));
        let TopEvent::Live(live) = heard.recv().unwrap() else { panic!("a change is wanted") };
        assert_eq!(live.progress.epoch, 21);
        let TopEvent::Trouble(error) = heard.recv().unwrap() else { panic!("the end is wanted") };
        assert!(matches!(error, AskError::StreamEnded { .. }), "{error}");
        serving.join().unwrap();
        assert!(matches!(heard.recv().unwrap(), TopEvent::Trouble(_)), "nobody answers");
        drop(heard);
        following.join().unwrap();
    }
}
