#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use super::*;

/// What a server does with a request: it has the file `body`, of which it sends some bytes and hangs up.
#[derive(Clone)]
pub(in crate::data) struct CutAnswer {
    pub(in crate::data) body: Arc<[u8]>,
    /// A header, in lower case, by which the file is known; with it the server knows ranges.
    pub(in crate::data) validator: Option<&'static str>,
    pub(in crate::data) n_bytes_max: usize,
}

/// Heads of requests, in lower case.
pub(in crate::data) type Requests = Arc<Mutex<Vec<String>>>;

/// A server that answers as many requests as there are `answers`, and is gone; its address.
pub(in crate::data) fn serving(answers: Vec<CutAnswer>) -> (String, Requests) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/file", listener.local_addr().unwrap());
    let requests = Requests::default();
    let seen = Arc::clone(&requests);
    std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let head = head_of(&mut stream);
            seen.lock().unwrap().push(head.clone());
            answer.send(&head, &mut stream);
        }
    });
    (address, requests)
}

fn head_of(stream: &mut TcpStream) -> String {
    let (mut head, mut byte) = (Vec::new(), [0_u8]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    String::from_utf8(head).unwrap().to_lowercase()
}

/// The value of a header of a request.
pub(in crate::data) fn header_of<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

impl CutAnswer {
    fn send(&self, head: &str, stream: &mut TcpStream) {
        let begin = header_of(head, "range").map(|range| {
            let begin = range.strip_prefix("bytes=").and_then(|range| range.strip_suffix('-'));
            begin.unwrap().parse::<usize>().unwrap()
        });
        let known = self.validator.map(|header| header.split_once(": ").unwrap().1);
        let begin = begin.filter(|_| known.is_some() && header_of(head, "if-range") == known);
        let rest = &self.body[begin.unwrap_or_default()..];
        let status = match begin {
            Some(begin) => {
                let (last, n_bytes) = (self.body.len() - 1, self.body.len());
                format!("206 Partial Content\r\ncontent-range: bytes {begin}-{last}/{n_bytes}")
            }
            None => "200 OK".to_owned(),
        };
        let validator = self.validator.map(|header| format!("{header}\r\n")).unwrap_or_default();
        let head = format!("HTTP/1.1 {status}\r\n{validator}content-length: {}\r\n\r\n", rest.len());
        let sent = &rest[..rest.len().min(self.n_bytes_max)];
        // Who has seen enough may be gone.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(sent));
    }
}

const ONCE_MORE: &[Duration] = &[Duration::ZERO; 2];
const TAG: Option<&str> = Some("etag: \"one\"");

/// 100,000 bytes that are nowhere the same.
fn bytes() -> Arc<[u8]> {
    (0..25_000_u32).flat_map(u32::to_le_bytes).collect()
}

/// `n` answers of the first `n_bytes_max` bytes that are wanted.
fn cut(
    body: &Arc<[u8]>,
    validator: Option<&'static str>,
    (n_bytes_max, n): (usize, usize),
) -> Vec<CutAnswer> {
    vec![CutAnswer { body: Arc::clone(body), validator, n_bytes_max }; n]
}

fn fetched(url: &str) -> io::Result<(Vec<u8>, Sha256Hash)> {
    let mut body = ResumingBody::open(url, ONCE_MORE).unwrap();
    let mut bytes = Vec::new();
    body.read_to_end(&mut bytes)?;
    Ok((bytes, body.sha256()))
}

fn ranges(requests: &Requests) -> Vec<Option<String>> {
    let requests = requests.lock().unwrap();
    requests.iter().map(|head| header_of(head, "range").map(str::to_owned)).collect()
}

#[test]
fn after_each_break_only_the_rest_is_asked_for() {
    for validator in ["etag: \"one\"", "last-modified: wed, 21 oct 2015 07:28:00 gmt"] {
        let (url, requests) = serving(cut(&bytes(), Some(validator), (30_000, 4)));
        let (read, hash) = fetched(&url).unwrap();
        assert!(read == bytes()[..]);
        assert_eq!(hash, Sha256Hash::of(&bytes()));
        let want = [None, Some("bytes=30000-"), Some("bytes=60000-"), Some("bytes=90000-")];
        assert_eq!(ranges(&requests), want.map(|range| range.map(str::to_owned)));
    }
}

#[test]
fn a_server_without_ranges_sends_the_file_again_and_each_byte_is_given_once() {
    // A weak tag says nothing of bytes.
    for validator in [None, Some("etag: W/\"one\"")] {
        let answers = [
            cut(&bytes(), None, (30_000, 1)),
            cut(&bytes(), None, (70_000, 1)),
            cut(&bytes(), None, (100_000, 1)),
        ];
        let answers = answers.concat().into_iter().map(|answer| CutAnswer { validator, ..answer });
        let (url, requests) = serving(answers.collect());
        let (read, hash) = fetched(&url).unwrap();
        assert!(read == bytes()[..]);
        assert_eq!(hash, Sha256Hash::of(&bytes()));
        assert_eq!(ranges(&requests), vec![None::<String>; 3]);
    }
}

#[test]
fn another_file_under_the_address_is_never_mixed_with_the_first() {
    let other: Arc<[u8]> = bytes().iter().rev().copied().collect();
    let answers = [cut(&bytes(), TAG, (30_000, 1)), cut(&other, Some("etag: \"two\""), (100_000, 1))];
    let (url, requests) = serving(answers.concat());
    let error = fetched(&url).unwrap_err().to_string();
    assert!(error.contains("another file") && error.contains("30000 bytes"), "{error}");
    assert_eq!(ranges(&requests).len(), 2);
    // The beginning is the same, and the file has grown.
    let grown: Arc<[u8]> = [&bytes()[..], b"more"].concat().into();
    let answers = [cut(&bytes(), TAG, (30_000, 1)), cut(&grown, Some("etag: \"two\""), (60_000, 2))];
    let (url, requests) = serving(answers.concat());
    assert!(fetched(&url).unwrap().0 == grown[..]);
    assert_eq!(ranges(&requests)[2].as_deref(), Some("bytes=60000-"), "the new file is known by its own tag");
}

#[test]
fn a_server_that_sends_nothing_more_is_given_up() {
    let answers = [cut(&bytes(), TAG, (30_000, 1)), cut(&bytes(), TAG, (0, 9))];
    let (url, requests) = serving(answers.concat());
    let mut body = ResumingBody::open(&url, ONCE_MORE).unwrap();
    let mut read = Vec::new();
    assert!(body.read_to_end(&mut read).is_err());
    assert!(read == bytes()[..30_000], "what had come was given");
    assert_eq!(ranges(&requests).len(), 1 + ONCE_MORE.len());
}
