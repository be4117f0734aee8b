#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};

use super::*;

#[test]
fn a_token_in_the_clear_is_noticed() {
    for here in
        ["http://127.0.0.1:8082", "http://[::1]:8082", "http://localhost:8082", "https://barn.example"]
    {
        assert!(!is_exposed(here), "{here}");
    }
    for elsewhere in ["http://10.0.0.1:8082", "http://barn.example", "http://[2001:db8::1]:8082"] {
        assert!(is_exposed(elsewhere), "{elsewhere}");
    }
}

/// A request, whose head was read.
fn asked(listener: &TcpListener) -> TcpStream {
    let stream = listener.accept().unwrap().0;
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
    stream
}

fn answer(mut stream: TcpStream, body: &str) {
    let length = body.len();
    write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}").unwrap();
}

/// A backbone that gives one answer after the other, and hangs up each time.
fn answering(answers: Vec<String>) -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        for body in answers {
            answer(asked(&listener), &body);
        }
    });
    (url, serving)
}

/// The card of a checkpoint with these bytes, as the backbone sends it.
fn card(content: &str) -> String {
    let card = CheckpointCard {
        run: "r".into(),
        title: "t".into(),
        purpose: "p".into(),
        model: Value::Null,
        data: "d".into(),
        epoch: 3,
        n_parameters: 1,
        n_bytes: content.len() as u64,
        sha256: hex(&Sha256::digest(content)),
        format: "f".into(),
    };
    serde_json::to_string(&card).unwrap()
}

/// The run of a backbone at `url`, with a token in `folder`.
fn target(url: String, folder: &Path) -> AdminTarget {
    let token = folder.join("token");
    barnraise_relay::write_private(&token, &[b'x'; 64]).unwrap();
    AdminTarget { config: None, url: Some(url), token_file: Some(token), run: Some("r".into()), json: false }
}

#[test]
fn a_checkpoint_that_came_otherwise_than_it_is_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("model.ckpt");
    let exported = |came: &str| {
        let (url, serving) = answering(vec![card("what it is"), came.to_owned()]);
        let exported = export(&target(url, folder.path()), Some(3), &output);
        serving.join().unwrap();
        exported
    };
    let error = exported("what is it").unwrap_err().to_string();
    assert!(error.contains("were announced"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "the token, and nothing else");
    exported("what it is").unwrap();
    assert_eq!(std::fs::read_to_string(&output).unwrap(), "what it is");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "with its card");
    // Nobody is asked for anything, and what is there stays.
    let target = AdminTarget { config: None, url: None, token_file: None, run: None, json: false };
    let error = export(&target, Some(4), &output).unwrap_err().to_string();
    assert!(error.contains("model.ckpt is there already"), "{error}");
    assert_eq!(std::fs::read_to_string(&output).unwrap(), "what it is");
}

#[test]
fn of_two_commands_at_once_the_file_of_the_first_that_ends_stays() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("model.ckpt");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let slow = target(format!("http://{}", listener.local_addr().unwrap()), folder.path());
    let exporting = {
        let output = output.clone();
        std::thread::spawn(move || export(&slow, Some(3), &output))
    };
    answer(asked(&listener), &card("slow"));
    let waiting = asked(&listener);
    let (url, serving) = answering(vec![card("quick"), "quick".to_owned()]);
    export(&target(url, folder.path()), Some(4), &output).unwrap();
    serving.join().unwrap();
    answer(waiting, "slow");
    let error = exporting.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("model.ckpt"), "{error}");
    assert_eq!(std::fs::read_to_string(&output).unwrap(), "quick");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "the token, and the file with its card");
}
