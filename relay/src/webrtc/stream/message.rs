//! Messages of the libp2p WebRTC specification on a data channel, each prefixed by its length.
//!
//! A message of the channel need not be one of these: js-libp2p sends the length by itself.

use bytes::{BufMut as _, Bytes, BytesMut};

/// Largest message that is read, length and all: the specification's limit.
pub(super) const MESSAGE_BYTES_MAX: usize = 16 * 1024;
/// Length, both tags, the length of the data and a flag.
pub(super) const OVERHEAD_BYTES_MAX: usize = 3 + 1 + 3 + 2;

const TAG_FLAG: u64 = 1 << 3;
const TAG_DATA: u64 = 2 << 3 | 2;

/// Flag of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flag {
    /// The sender will send no more.
    Fin = 0,
    /// The sender reads no more.
    StopSending = 1,
    /// The sender has given the stream up.
    Reset = 2,
    /// The sender has got everything up to the other's `Fin`.
    FinAck = 3,
}

impl Flag {
    fn of(number: u64) -> Option<Self> {
        [Self::Fin, Self::StopSending, Self::Reset, Self::FinAck]
            .into_iter()
            .find(|flag| *flag as u64 == number)
    }
}

/// Bytes, a flag, or both: the bytes come first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ChannelMessage {
    pub(super) data: Bytes,
    pub(super) flag: Option<Flag>,
}

/// Why bytes are no valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MessageError {
    #[error("want a message of at most {MESSAGE_BYTES_MAX} bytes, got one of {0}")]
    TooLong(u64),
    #[error("a message of the WebRTC stream is broken")]
    Malformed,
}

/// Only bytes.
pub(super) fn encode_data(data: &[u8]) -> Bytes {
    let mut message = BytesMut::with_capacity(data.len() + OVERHEAD_BYTES_MAX);
    put_varint(&mut message, 1 + n_varint_bytes(data.len()) + data.len());
    message.put_u8(TAG_DATA as u8);
    put_varint(&mut message, data.len());
    message.put_slice(data);
    message.freeze()
}

/// Only a flag.
pub(super) fn encode_flag(flag: Flag) -> Bytes {
    Bytes::copy_from_slice(&[2, TAG_FLAG as u8, flag as u8])
}

fn n_varint_bytes(value: usize) -> usize {
    (value.max(1).ilog2() / 7) as usize + 1
}

fn put_varint(into: &mut BytesMut, mut value: usize) {
    while value >= 0x80 {
        into.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    into.put_u8(value as u8);
}

/// Reads messages from the bytes of a channel.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    unread: BytesMut,
}

impl Decoder {
    /// What came on the channel.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
    }

    /// The next message; `None` until more has come.
    pub(super) fn next(&mut self) -> Result<Option<ChannelMessage>, MessageError> {
        let mut length = Reader(&self.unread);
        let Some(n_bytes) = length.varint()? else { return Ok(None) };
        let n_before = self.unread.len() - length.0.len();
        if n_bytes > MESSAGE_BYTES_MAX as u64 {
            return Err(MessageError::TooLong(n_bytes));
        }
        let n_whole = n_before + n_bytes as usize;
        if self.unread.len() < n_whole {
            return Ok(None);
        }
        let whole = self.unread.split_to(n_whole).freeze();
        decode(&whole.slice(n_before..)).map(Some)
    }
}

fn decode(bytes: &Bytes) -> Result<ChannelMessage, MessageError> {
    let mut message = ChannelMessage::default();
    let mut reader = Reader(bytes);
    while !reader.0.is_empty() {
        match reader.whole_varint()? {
            TAG_FLAG => message.flag = Flag::of(reader.whole_varint()?),
            TAG_DATA => {
                let data = reader.take_counted()?;
                message.data = bytes.slice_ref(data);
            }
            // Fields of a later version, by their wire type.
            other => match other & 7 {
                0 => drop(reader.whole_varint()?),
                1 => drop(reader.take(8)?),
                2 => drop(reader.take_counted()?),
                5 => drop(reader.take(4)?),
                _ => return Err(MessageError::Malformed),
            },
        }
    }
    Ok(message)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// `None` where it has not come whole.
    fn varint(&mut self) -> Result<Option<u64>, MessageError> {
        let mut value = 0;
        for (number, byte) in self.0.iter().enumerate() {
            if number == 9 {
                return Err(MessageError::Malformed);
            }
            value |= u64::from(byte & 0x7f) << (7 * number);
            if byte & 0x80 == 0 {
                self.0 = &self.0[number + 1..];
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    fn whole_varint(&mut self) -> Result<u64, MessageError> {
        self.varint()?.ok_or(MessageError::Malformed)
    }

    fn take(&mut self, n_bytes: usize) -> Result<&'a [u8], MessageError> {
        let (taken, rest) = self.0.split_at_checked(n_bytes).ok_or(MessageError::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn take_counted(&mut self) -> Result<&'a [u8], MessageError> {
        let n_bytes = usize::try_from(self.whole_varint()?).map_err(|_| MessageError::Malformed)?;
        self.take(n_bytes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn all(decoder: &mut Decoder) -> Vec<ChannelMessage> {
        std::iter::from_fn(|| decoder.next().unwrap()).collect()
    }

    fn of(flag: Flag) -> ChannelMessage {
        ChannelMessage { flag: Some(flag), ..ChannelMessage::default() }
    }

    #[test]
    fn flags_are_those_of_the_specification() {
        assert_eq!(encode_flag(Flag::Fin)[..], [2, 8, 0]);
        assert_eq!(encode_flag(Flag::FinAck)[..], [2, 8, 3]);
        assert_eq!(encode_data(b"hi")[..], [4, 18, 2, b'h', b'i']);
    }

    #[test]
    fn messages_read_back_however_they_come() {
        let long: Vec<u8> = (0..16_000_u32).map(|at| at as u8).collect();
        let mut sent = BytesMut::new();
        for data in [&b"x"[..], &long[..127], &long[..128], &long] {
            sent.extend_from_slice(&encode_data(data));
        }
        sent.extend_from_slice(&encode_flag(Flag::Fin));
        for piece in [1, 3, 1000, sent.len()] {
            let (mut decoder, mut read) = (Decoder::default(), Vec::new());
            for bytes in sent.chunks(piece) {
                decoder.push(bytes);
                read.extend(all(&mut decoder));
            }
            let lengths: Vec<usize> = read.iter().map(|message| message.data.len()).collect();
            assert_eq!(lengths, [1, 127, 128, 16_000, 0], "{piece} bytes at a time");
            assert_eq!(read[3].data, long);
            assert_eq!(read[4], of(Flag::Fin));
        }
    }

    #[test]
    fn a_message_may_have_both_and_what_we_do_not_know() {
        let mut decoder = Decoder::default();
        // Field 7 as a varint, field 8 as bytes, then the data and a flag; then a flag that nobody knows.
        decoder.push(&[11, 56, 1, 66, 1, 9, 8, 0, 18, 2, b'h', b'i', 2, 8, 99]);
        let both = ChannelMessage { data: Bytes::from_static(b"hi"), flag: Some(Flag::Fin) };
        assert_eq!(all(&mut decoder), [both, ChannelMessage::default()]);
    }

    #[test]
    fn no_bytes_panic_and_none_are_kept_without_end() {
        let mut decoder = Decoder::default();
        decoder.push(&[0xff, 0xff, 3]);
        assert_eq!(decoder.next(), Err(MessageError::TooLong(0xffff)));
        let mut seed = 1_u64;
        for _ in 0..20_000 {
            let mut decoder = Decoder::default();
            for _ in 0..12 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                decoder.push(&[(seed >> 33) as u8 % 24]);
                let _ = decoder.next();
            }
        }
    }

    #[test]
    fn the_overhead_is_counted() {
        let data = vec![0; MESSAGE_BYTES_MAX - OVERHEAD_BYTES_MAX];
        assert!(encode_data(&data).len() <= MESSAGE_BYTES_MAX);
    }
}
