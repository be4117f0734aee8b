//! A hostile remote that floods, opens, resets, grants and reads nothing. The memory per connection stays bounded.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};
use std::task::Waker;

use futures::{AsyncReadExt as _, AsyncWriteExt as _, FutureExt as _};

use super::backlog::{UNREAD_BYTES_MAX, UNREAD_FRAMES_MAX, UNSENT_BYTES_MAX};
use super::frames::{DATA, FIN, GO_AWAY, HEADER_BYTES, RST, SYN, WINDOW_UPDATE};
use super::joined::IDLE_FRAMES_PER_MINUTE;
use super::*;
use crate::guard_metrics::Violation;

const PING: u8 = 2;
const ACK: u16 = 2;
const N_STREAMS_MAX: usize = 128;
/// A frame whose header was read may be as long (`MAX_FRAME_BODY_LEN` of Yamux).
const FRAME_BYTES_MAX: usize = 1024 * 1024;
const CREDIT: usize = yamux::DEFAULT_CREDIT as usize;

/// Bytes that the remote sent and were not read yet, bytes that it received, and its free receive window.
#[derive(Default)]
struct Wire {
    sent: Vec<u8>,
    n_taken: usize,
    got: Vec<u8>,
    room: usize,
}

impl Wire {
    fn n_untaken(&self) -> usize {
        self.sent.len() - self.n_taken
    }
}

/// The local end. It wakes no task: the tests poll.
#[derive(Clone, Default)]
struct WireEnd(Arc<Mutex<Wire>>);

impl AsyncRead for WireEnd {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut wire = self.0.lock().unwrap();
        let n_bytes = into.len().min(wire.n_untaken());
        if n_bytes == 0 {
            return Poll::Pending;
        }
        let from = wire.n_taken;
        into[..n_bytes].copy_from_slice(&wire.sent[from..from + n_bytes]);
        wire.n_taken += n_bytes;
        Poll::Ready(Ok(n_bytes))
    }
}

impl AsyncWrite for WireEnd {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut wire = self.0.lock().unwrap();
        let n_bytes = bytes.len().min(wire.room);
        if n_bytes == 0 {
            return Poll::Pending;
        }
        wire.room -= n_bytes;
        wire.got.extend_from_slice(&bytes[..n_bytes]);
        Poll::Ready(Ok(n_bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn frame(kind: u8, flags: u16, stream: u32, length: u32) -> Vec<u8> {
    let [f0, f1] = flags.to_be_bytes();
    [&[0, kind, f0, f1][..], &stream.to_be_bytes(), &length.to_be_bytes()].concat()
}

fn data(flags: u16, stream: u32, body: &[u8]) -> Vec<u8> {
    [frame(DATA, flags, stream, body.len() as u32), body.to_vec()].concat()
}

/// A connection whose other end is hostile.
struct HostileRemote {
    socket: WireEnd,
    muxer: Muxer<WireEnd>,
    metrics: GuardMetrics,
}

impl HostileRemote {
    fn new(room: usize) -> Self {
        let (socket, metrics) = (WireEnd::default(), GuardMetrics::default());
        socket.0.lock().unwrap().room = room;
        let muxer = Muxing::new(N_STREAMS_MAX, metrics.clone()).begin(socket.clone(), Mode::Server);
        Self { socket, muxer, metrics }
    }

    fn send(&self, bytes: &[u8]) {
        self.socket.0.lock().unwrap().sent.extend_from_slice(bytes);
    }

    fn open(&self, room: usize) {
        self.socket.0.lock().unwrap().room = room;
    }

    fn n_untaken(&self) -> usize {
        self.socket.0.lock().unwrap().n_untaken()
    }

    /// Streams that were opened, until nothing moves, or why the connection ended.
    fn drive(&mut self) -> Result<Vec<Substream>, ConnectionError> {
        let mut streams = Vec::new();
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            match Pin::new(&mut self.muxer).poll_inbound(&mut cx) {
                Poll::Ready(Ok(stream)) => streams.push(stream),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(streams),
            }
        }
    }

    /// Frames of a kind that came out.
    fn n_got(&self, kind: u8) -> usize {
        let (wire, mut scanner, mut n_frames) = (self.socket.0.lock().unwrap(), frames::Frames::default(), 0);
        let mut rest = &wire.got[..];
        while let Some(part) = scanner.next(&mut rest) {
            n_frames += usize::from(matches!(part, frames::FramePart::Header(header) if header.kind == kind));
        }
        n_frames
    }

    fn n_counted(&self, violation: Violation) -> u64 {
        self.metrics.n_counted(violation)
    }
}

/// What is there now.
fn read(stream: &mut Substream) -> usize {
    let (mut n_read, mut buffer) = (0, vec![0; 64 * 1024]);
    while let Some(Ok(n_bytes)) = stream.read(&mut buffer).now_or_never() {
        if n_bytes == 0 {
            break;
        }
        n_read += n_bytes;
    }
    n_read
}

#[tokio::test]
async fn who_takes_no_answer_to_its_pings_sends_no_further_ones() {
    const N_PINGS: usize = IDLE_FRAMES_PER_MINUTE as usize;
    let mut remote = HostileRemote::new(0);
    let pings: Vec<u8> = (0..N_PINGS).flat_map(|nonce| frame(PING, SYN, 0, nonce as u32)).collect();
    remote.send(&pings);
    remote.drive().unwrap();
    let n_taken = N_PINGS - remote.n_untaken() / HEADER_BYTES;
    assert!(n_taken < 100, "{n_taken} pings taken whose answers nobody takes");
    // A peer that reads its answers gets one for each.
    remote.open(usize::MAX);
    remote.drive().unwrap();
    assert_eq!((remote.n_untaken(), remote.n_got(PING)), (0, N_PINGS + 1), "and one of ours");
}

#[tokio::test(start_paused = true)]
async fn frames_that_no_stream_waits_for_end_a_connection_that_is_full_of_them() {
    let opened = frame(WINDOW_UPDATE, SYN, 1, 0);
    let idle = [
        frame(PING, SYN, 0, 7),
        frame(DATA, 0, 1, 0),
        frame(WINDOW_UPDATE, 0, 1, 1),
        frame(WINDOW_UPDATE, 0, 3, 1 << 18),
        frame(DATA, FIN, 3, 0),
        frame(DATA, RST, 3, 0),
        data(SYN | RST, 3, &[]),
    ];
    for (number, idle) in idle.into_iter().enumerate() {
        let mut remote = HostileRemote::new(usize::MAX);
        remote.send(&opened);
        let _streams = remote.drive().unwrap();
        let all = idle.repeat(IDLE_FRAMES_PER_MINUTE as usize);
        remote.send(&all);
        assert!(remote.drive().is_ok(), "number {number}");
        remote.send(&all);
        assert!(remote.drive().is_err(), "number {number}");
        assert_eq!(remote.n_counted(Violation::BrokenFrames), 1, "number {number}");
    }
}

/// Each has a task begun and ended. How many of them there are at a time bounds nothing of that.
#[tokio::test(start_paused = true)]
async fn streams_that_are_opened_and_ended_for_nothing_end_a_connection_that_is_full_of_them() {
    let in_vain = |stream| {
        let (open, reset) = (frame(WINDOW_UPDATE, SYN, stream, 0), frame(DATA, RST, stream, 0));
        let end = frame(DATA, FIN, stream, 0);
        [
            [open.clone(), reset.clone()].concat(),
            [open, end].concat(),
            data(SYN | FIN, stream, &[]),
            // As much as the name of a protocol says nothing to who does not wait for the answer.
            [data(SYN, stream, b"/multistream/1.0.0"), reset].concat(),
        ]
    };
    for kind in 0..in_vain(1).len() {
        let mut remote = HostileRemote::new(usize::MAX);
        let mut n_ended = 0;
        for stream in (1..).step_by(2).take(2 * IDLE_FRAMES_PER_MINUTE as usize) {
            remote.send(&in_vain(stream)[kind]);
            if remote.drive().is_err() {
                break;
            }
            n_ended += 1;
        }
        let allowed = IDLE_FRAMES_PER_MINUTE..IDLE_FRAMES_PER_MINUTE + 100;
        assert!(allowed.contains(&n_ended), "kind {kind}: {n_ended}");
        assert_eq!(remote.n_counted(Violation::BrokenFrames), 1, "kind {kind}");
    }
}

#[test]
fn streams_that_were_answered_may_be_ended_in_any_way() {
    let mut remote = HostileRemote::new(usize::MAX);
    for stream in (1..).step_by(2).take(2 * IDLE_FRAMES_PER_MINUTE as usize) {
        remote.send(&data(SYN, stream, b"asked"));
        let mut streams = remote.drive().unwrap();
        assert!(matches!(streams[0].write(b"answered").now_or_never(), Some(Ok(8))));
        remote.drive().unwrap();
        let end = if stream % 4 == 1 { FIN } else { RST };
        remote.send(&frame(DATA, end, stream, 0));
        remote.drive().unwrap();
    }
}

#[test]
fn what_is_said_of_streams_that_just_went_is_never_too_much() {
    let mut remote = HostileRemote::new(usize::MAX);
    for stream in (1..4 * IDLE_FRAMES_PER_MINUTE).step_by(2) {
        remote.send(&data(SYN, stream, &[7; 9]));
        for mut opened in remote.drive().unwrap() {
            assert_eq!(read(&mut opened), 9);
        }
        remote.send(&[frame(WINDOW_UPDATE, 0, stream, 1 << 18), frame(DATA, FIN, stream, 0)].concat());
        remote.drive().unwrap();
    }
}

#[test]
fn what_a_stream_waits_for_is_never_too_much() {
    let mut remote = HostileRemote::new(usize::MAX);
    remote.send(&frame(WINDOW_UPDATE, SYN, 1, 0));
    let mut streams = remote.drive().unwrap();
    for _ in 0..2 * IDLE_FRAMES_PER_MINUTE {
        remote.send(&[data(0, 1, &[7]), frame(WINDOW_UPDATE, 0, 1, 1024)].concat());
        remote.drive().unwrap();
        read(&mut streams[0]);
    }
}

#[tokio::test]
async fn window_updates_and_resets_of_nothing_take_no_memory() {
    let mut remote = HostileRemote::new(0);
    for stream in (1..IDLE_FRAMES_PER_MINUTE).step_by(2) {
        remote.send(&frame(WINDOW_UPDATE, 0, stream, 1));
        remote.send(&frame(DATA, RST, stream, 0));
        remote.send(&data(0, stream, b"nobody reads it"));
        remote.send(&data(RST | SYN, stream, b"nor this"));
    }
    assert!(remote.drive().unwrap().is_empty());
    assert_eq!((remote.n_untaken(), remote.muxer.backlog.held()), (0, (0, 0, 0)));
}

#[test]
fn all_streams_of_a_connection_hold_as_much_as_one_may() {
    let mut remote = HostileRemote::new(usize::MAX);
    for stream in 0..N_STREAMS_MAX as u32 {
        remote.send(&data(SYN, 2 * stream + 1, &vec![7; CREDIT]));
    }
    let mut streams = remote.drive().unwrap();
    let most = UNREAD_BYTES_MAX + FRAME_BYTES_MAX;
    let (n_unread, ..) = remote.muxer.backlog.held();
    assert!((UNREAD_BYTES_MAX..most).contains(&n_unread), "{n_unread} unread");
    // What is read makes room; in the end everything arrives.
    let mut n_read = 0;
    while n_read < N_STREAMS_MAX * CREDIT {
        let n_now: usize = streams.iter_mut().map(read).sum();
        assert!(n_now > 0, "stuck at {n_read}");
        n_read += n_now;
        streams.extend(remote.drive().unwrap());
    }
    assert_eq!((remote.n_untaken(), remote.muxer.backlog.held()), (0, (0, 0, 0)));
}

#[test]
fn bytes_that_come_one_by_one_count_by_what_they_take() {
    const N_FRAMES: usize = 200_000;
    let mut remote = HostileRemote::new(usize::MAX);
    remote.send(&frame(WINDOW_UPDATE, SYN, 1, 0));
    let tiny: Vec<u8> = (0..N_FRAMES).flat_map(|_| data(0, 1, &[7])).collect();
    remote.send(&tiny);
    let mut streams = remote.drive().unwrap();
    assert_eq!(remote.muxer.backlog.held().1, UNREAD_FRAMES_MAX);
    let mut n_read = 0;
    while n_read < N_FRAMES {
        n_read += read(&mut streams[0]);
        remote.drive().unwrap();
    }
    assert_eq!((remote.n_untaken(), remote.muxer.backlog.held()), (0, (0, 0, 0)));
}

#[tokio::test]
async fn streams_that_are_dropped_while_nothing_can_be_said_keep_their_bytes() {
    let mut remote = HostileRemote::new(0);
    // Ours is under way: Yamux can tell nobody that it lets a stream go.
    remote.send(&frame(PING, SYN, 0, 0));
    for stream in 0..N_STREAMS_MAX as u32 {
        remote.send(&data(SYN, 2 * stream + 1, &vec![7; CREDIT]));
    }
    for _ in 0..N_STREAMS_MAX {
        drop(remote.drive().unwrap());
    }
    let (n_unread, ..) = remote.muxer.backlog.held();
    assert!(n_unread < UNREAD_BYTES_MAX + FRAME_BYTES_MAX, "{n_unread} unread");
    remote.open(usize::MAX);
    while remote.n_untaken() > 0 {
        drop(remote.drive().unwrap());
    }
    drop(remote.drive().unwrap());
    assert_eq!(remote.muxer.backlog.held(), (0, 0, 0));
}

#[tokio::test]
async fn what_nobody_takes_is_not_written() {
    const N_STREAMS: u32 = 100;
    const N_BYTES: usize = 1 << 20;
    let mut remote = HostileRemote::new(0);
    for stream in 0..N_STREAMS {
        remote.send(&frame(WINDOW_UPDATE, SYN, 2 * stream + 1, 1 << 30));
    }
    let mut streams = remote.drive().unwrap();
    let piece = vec![7; N_BYTES];
    let mut n_left = vec![N_BYTES; streams.len()];
    let mut write = |remote: &mut HostileRemote| {
        for (stream, n_left) in streams.iter_mut().zip(&mut n_left) {
            while *n_left > 0
                && let Some(n_written) = stream.write(&piece[..*n_left]).now_or_never()
            {
                *n_left -= n_written.unwrap();
            }
            remote.drive().unwrap();
        }
        n_left.iter().sum::<usize>()
    };
    for _ in 0..20 {
        write(&mut remote);
    }
    let n_written = N_STREAMS as usize * N_BYTES - write(&mut remote);
    assert!(n_written <= UNSENT_BYTES_MAX, "{n_written} bytes wait for somebody who takes none");
    remote.open(usize::MAX);
    while write(&mut remote) > 0 {}
    assert_eq!(remote.muxer.backlog.held(), (0, 0, 0));
}

#[tokio::test]
async fn a_connection_that_takes_nothing_for_too_long_ends() {
    let mut remote = HostileRemote::new(0);
    let mut muxing = Muxing::new(N_STREAMS_MAX, remote.metrics.clone());
    muxing.stall_max = Duration::from_millis(10);
    remote.muxer = muxing.begin(remote.socket.clone(), Mode::Server);
    let pings: Vec<u8> = (0..100).flat_map(|nonce| frame(PING, SYN, 0, nonce)).collect();
    remote.send(&pings);
    let ended = std::future::poll_fn(|cx| Pin::new(&mut remote.muxer).poll_inbound(cx)).await;
    assert!(ended.is_err());
    assert_eq!(remote.n_counted(Violation::ClosedWindow), 1);
}

#[test]
fn who_breaks_the_protocol_is_told_and_cut_off() {
    let too_many = (0..=N_STREAMS_MAX as u32).flat_map(|stream| frame(WINDOW_UPDATE, SYN, 2 * stream + 1, 0));
    let again = [frame(WINDOW_UPDATE, SYN, 1, 0), frame(DATA, SYN, 1, 0)].concat();
    let pong = [frame(PING, ACK, 0, 7), frame(PING, ACK, 0, 7)].concat();
    let beyond_window = [data(SYN, 1, &vec![7; CREDIT]), data(0, 1, &[7])].concat();
    let overflow = [frame(WINDOW_UPDATE, SYN, 1, 1), frame(WINDOW_UPDATE, 0, 1, u32::MAX)].concat();
    let all = [too_many.collect(), again, pong, beyond_window, overflow, frame(DATA, SYN, 2, 0)];
    for (number, broken) in all.into_iter().enumerate() {
        let mut remote = HostileRemote::new(usize::MAX);
        remote.send(&broken);
        // A thousand more would each be answered, and logged.
        for _ in 0..1000 {
            remote.send(&broken);
        }
        let mut streams = Vec::new();
        let ended = loop {
            match remote.drive() {
                Ok(more) if more.is_empty() => break Ok(()),
                Ok(more) => streams.extend(more),
                Err(error) => break Err(error),
            }
        };
        assert!(ended.is_err(), "number {number}");
        assert_eq!(
            (remote.n_got(GO_AWAY), remote.n_counted(Violation::BrokenFrames)),
            (1, 1),
            "number {number}"
        );
    }
}

#[test]
fn credit_beyond_32_bits_ends_the_connection_alone() {
    let mut remote = HostileRemote::new(usize::MAX);
    remote.send(&frame(WINDOW_UPDATE, SYN, 1, u32::MAX));
    assert!(remote.drive().is_err());
    assert_eq!(remote.n_counted(Violation::BrokenFrames), 1);
}

/// SplitMix64: what comes of a seed.
struct TestRandom(u64);

impl TestRandom {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % n as u64) as usize
    }

    /// A frame of a flood.
    fn frame(&mut self) -> Vec<u8> {
        const FLAGS: [u16; 9] = [0, SYN, ACK, FIN, RST, SYN | FIN, SYN | RST, SYN | ACK, 0xffff];
        const LENGTHS: [u32; 5] = [0, 1, 99, 70_000, u32::MAX];
        let (flags, stream) = (FLAGS[self.below(FLAGS.len())], self.below(40) as u32);
        match self.below(8) {
            kind @ 1..=3 => frame(kind as u8, flags, stream, LENGTHS[self.below(LENGTHS.len())]),
            _ => data(flags, stream, &vec![7; self.below(20_000)]),
        }
    }
}

#[tokio::test]
async fn no_flood_panics_or_is_held_without_bound() {
    for seed in 0..300 {
        let mut dice = TestRandom(seed);
        let mut remote = HostileRemote::new([0, 1000, usize::MAX][dice.below(3)]);
        let (is_read, mut streams) = (dice.below(2) == 0, Vec::new());
        for _ in 0..400 {
            remote.send(&dice.frame());
            let Ok(more) = remote.drive() else { break };
            streams.extend(more);
            if is_read {
                streams.iter_mut().for_each(|stream| {
                    read(stream);
                });
            }
            let (n_unread, n_frames, n_unsent) = remote.muxer.backlog.held();
            assert!(n_unread < UNREAD_BYTES_MAX + FRAME_BYTES_MAX, "seed {seed}: {n_unread} unread");
            assert!(n_frames <= UNREAD_FRAMES_MAX && n_unsent <= UNSENT_BYTES_MAX, "seed {seed}");
        }
    }
}
