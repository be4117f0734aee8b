//! Any bytes on a data channel.

use barnraise_fuzz::{fuzz, value};

use super::message::{ChannelMessage, Decoder, MESSAGE_BYTES_MAX, MessageError, encode_data, encode_flag};

/// All messages, and what ended them.
fn messages(pieces: &[&[u8]]) -> (Vec<ChannelMessage>, Option<MessageError>) {
    let (mut decoder, mut messages) = (Decoder::default(), Vec::new());
    for piece in pieces {
        decoder.push(piece);
        loop {
            match decoder.next() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => return (messages, Some(error)),
            }
        }
    }
    (messages, None)
}

#[test]
fn channel_messages() {
    fuzz!("channel_messages", |input| {
        let Some((cut, bytes)) = value::<(u8, &[u8])>(input) else { return };
        let (one, other) = bytes.split_at(usize::from(cut).min(bytes.len()));
        let (read, error) = messages(&[bytes]);
        assert_eq!(messages(&[one, other]), (read.clone(), error), "however they are cut");
        for message in read {
            assert!(message.data.len() <= MESSAGE_BYTES_MAX);
            let mut sent = encode_data(&message.data).to_vec();
            message.flag.iter().for_each(|flag| sent.extend_from_slice(&encode_flag(*flag)));
            let (again, error) = messages(&[&sent]);
            let is_too_long = matches!(error, Some(MessageError::TooLong(_)));
            assert!(
                error.is_none() || is_too_long && message.data.len() > MESSAGE_BYTES_MAX - 9,
                "{error:?}"
            );
            if error.is_none() {
                assert_eq!(again[0].data, message.data);
                assert_eq!(again.get(1).and_then(|after| after.flag), message.flag);
            }
        }
    });
}
