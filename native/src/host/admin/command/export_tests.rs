#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::net::TcpListener;

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

/// A backbone that gives one answer after the other, and hangs up each time.
fn answering(answers: Vec<String>) -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        for body in answers {
            let mut stream = listener.accept().unwrap().0;
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            let length = body.len();
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
                .unwrap();
        }
    });
    (url, serving)
}

#[test]
fn a_checkpoint_that_came_otherwise_than_it_is_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (token, output) = (folder.path().join("token"), folder.path().join("model.ckpt"));
    barnraise_relay::write_private(&token, &[b'x'; 64]).unwrap();
    let card = |content: &str| CheckpointCard {
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
    let exported = |came: &str| {
        let card = serde_json::to_string(&card("what it is")).unwrap();
        let (url, serving) = answering(vec![card, came.to_owned()]);
        let (url, token_file, run) = (Some(url), Some(token.clone()), Some("r".to_owned()));
        let target = AdminTarget { config: None, url, token_file, run, json: false };
        let exported = export(&target, Some(3), &output);
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
