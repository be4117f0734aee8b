//! The way between a contributor and its backbone, which delays what is said, stands still and breaks as a test says; and
//! tasks that stand still.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use barnraise_swarm::random::SplitMix64;
use futures::{AsyncRead, AsyncWrite};
use tokio::io::DuplexStream;
use tokio::time::{Instant, Sleep};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};

/// Bytes of one direction of a stream that may be under way.
const DUPLEX_BYTES: usize = 16 * 1024;
/// Of these, what comes at once.
const PIECE_BYTES: usize = 2048;

/// When something goes on that stands still.
#[derive(Debug)]
pub(super) struct Halt {
    until: Cell<Instant>,
    waiting: RefCell<Option<Waker>>,
}

impl Halt {
    pub(super) fn new() -> Rc<Self> {
        Rc::new(Self { until: Cell::new(Instant::now()), waiting: RefCell::default() })
    }

    pub(super) fn until(&self) -> Instant {
        self.until.get()
    }

    /// It stands still until then at least.
    pub(super) fn stand_until(&self, until: Instant) {
        self.until.set(self.until.get().max(until));
    }

    /// It goes on then, if not before.
    pub(super) fn go_on_at(&self, at: Instant) {
        self.until.set(self.until.get().min(at));
        if let Some(waker) = self.waiting.take() {
            waker.wake();
        }
    }
}

/// A task that stands still now and then: nothing of it runs until that moment.
pub(super) struct Halting<F> {
    halt: Rc<Halt>,
    task: Pin<Box<F>>,
    sleep: Pin<Box<Sleep>>,
}

impl<F> Halting<F> {
    pub(super) fn new(halt: &Rc<Halt>, task: F) -> Self {
        let sleep = Box::pin(tokio::time::sleep(Duration::ZERO));
        Self { halt: Rc::clone(halt), task: Box::pin(task), sleep }
    }
}

impl<F: Future> Future for Halting<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        loop {
            let until = self.halt.until();
            if until <= Instant::now() {
                let polled = self.task.as_mut().poll(context);
                // What it did may have halted it.
                if polled.is_ready() || self.halt.until() <= Instant::now() {
                    return polled;
                }
                continue;
            }
            self.halt.waiting.replace(Some(context.waker().clone()));
            self.sleep.as_mut().reset(until);
            if self.sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

/// The way of one contributor.
pub(super) struct Link {
    /// Until then nothing comes through in either direction.
    stalled_until: Cell<Instant>,
    /// Until then nobody answers.
    away_until: Cell<Instant>,
    /// The number of the connection; each one that breaks is followed by another.
    connection: Cell<u64>,
    is_up: Cell<bool>,
    delay_ms_max: usize,
    random: RefCell<SplitMix64>,
    /// Who waits for something of the connection.
    waiting: RefCell<BTreeMap<u64, Waker>>,
    n_ends: Cell<u64>,
}

impl Link {
    /// What is said takes up to so many milliseconds.
    pub(super) fn new(delay_ms_max: usize, seed: u64) -> Rc<Self> {
        let now = Instant::now();
        Rc::new(Self {
            stalled_until: Cell::new(now),
            away_until: Cell::new(now),
            connection: Cell::new(0),
            is_up: Cell::new(false),
            delay_ms_max,
            random: RefCell::new(SplitMix64::new(seed)),
            waiting: RefCell::default(),
            n_ends: Cell::new(0),
        })
    }

    pub(super) fn stall(&self, until: Instant) {
        self.stalled_until.set(self.stalled_until.get().max(until));
    }

    /// The connection breaks for both sides, and there is none until then.
    pub(super) fn cut(&self, until: Instant) {
        self.away_until.set(self.away_until.get().max(until));
        self.hang_up();
    }

    pub(super) fn hang_up(&self) {
        self.is_up.set(false);
        self.connection.set(self.connection.get() + 1);
        self.waiting.take().into_values().for_each(Waker::wake);
    }

    pub(super) async fn dial(&self) -> Result<(), String> {
        tokio::time::sleep_until(self.stalled_until.get()).await;
        tokio::time::sleep(self.delay()).await;
        if self.away_until.get() > Instant::now() {
            return Err("no way there".into());
        }
        self.is_up.set(true);
        Ok(())
    }

    /// A stream on the connection: its two ends.
    pub(super) async fn open(self: &Rc<Self>) -> Result<(End, End), String> {
        tokio::time::sleep_until(self.stalled_until.get()).await;
        if !self.is_up.get() {
            return Err("there is no connection".into());
        }
        let (near, far) = tokio::io::duplex(DUPLEX_BYTES);
        Ok((End::new(self, near), End::new(self, far)))
    }

    fn delay(&self) -> Duration {
        Duration::from_millis(self.random.borrow_mut().below(self.delay_ms_max + 1) as u64)
    }
}

/// One end of a stream.
pub(super) struct End {
    inner: Compat<DuplexStream>,
    link: Rc<Link>,
    connection: u64,
    number: u64,
    /// What came and when it can be read; its end where it is empty.
    arrived: Option<(Vec<u8>, Instant)>,
    timer: Pin<Box<Sleep>>,
}

/// For what an end waits.
#[derive(Clone, Copy)]
enum For {
    Bytes,
    Room,
}

impl End {
    fn new(link: &Rc<Link>, inner: DuplexStream) -> Self {
        let number = link.n_ends.get();
        link.n_ends.set(number + 1);
        Self {
            inner: inner.compat(),
            link: Rc::clone(link),
            connection: link.connection.get(),
            number,
            arrived: None,
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
        }
    }

    fn key(&self, what: For) -> u64 {
        2 * self.number + what as u64
    }

    fn check(&self) -> io::Result<()> {
        let is_whole = self.connection == self.link.connection.get();
        if is_whole { Ok(()) } else { Err(io::ErrorKind::ConnectionReset.into()) }
    }

    fn wait<T>(&self, what: For, context: &Context<'_>) -> Poll<T> {
        self.link.waiting.borrow_mut().insert(self.key(what), context.waker().clone());
        Poll::Pending
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut waiting = self.link.waiting.borrow_mut();
        for what in [For::Bytes, For::Room] {
            waiting.remove(&self.key(what));
        }
    }
}

impl AsyncRead for End {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        loop {
            this.check()?;
            let Some((bytes, at)) = &mut this.arrived else {
                let mut bytes = [0; PIECE_BYTES];
                let Poll::Ready(read) = Pin::new(&mut this.inner).poll_read(context, &mut bytes) else {
                    return this.wait(For::Bytes, context);
                };
                let at = Instant::now() + this.link.delay();
                this.arrived = Some((bytes[..read?].to_vec(), at));
                continue;
            };
            let at = (*at).max(this.link.stalled_until.get());
            if at > Instant::now() {
                this.timer.as_mut().reset(at);
                if this.timer.as_mut().poll(context).is_pending() {
                    return this.wait(For::Bytes, context);
                }
                continue;
            }
            let n = bytes.len().min(buffer.len());
            buffer[..n].copy_from_slice(&bytes[..n]);
            bytes.drain(..n);
            if n > 0 && bytes.is_empty() {
                this.arrived = None;
            }
            return Poll::Ready(Ok(n));
        }
    }
}

impl AsyncWrite for End {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        match Pin::new(&mut self.inner).poll_write(context, bytes) {
            Poll::Pending => self.wait(For::Room, context),
            ready => ready,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.inner).poll_close(context)
    }
}
