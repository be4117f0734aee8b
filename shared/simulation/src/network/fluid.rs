//! Transfers as fluids that share the links of their ends.
//!
//! Rates are max-min fair (progressive filling: Bertsekas and Gallager, Data Networks, section 6.5.2), which is what TCP comes
//! close to when round trips are alike; with weights, where senders share their links by plan. There are no packets here.

use std::collections::VecDeque;

/// Transfers that end within this are one moment, in s.
const SAME_MOMENT_S: f64 = 1e-9;
/// Less than this is nothing: rounding must not keep a transfer alive, in bytes.
const NOTHING_BYTES: f64 = 1e-3;

/// A transfer as it begins.
#[derive(Debug)]
pub(crate) struct Flow<T> {
    /// The links that it crosses, each once.
    pub(crate) links: Vec<usize>,
    pub(crate) bytes: f64,
    /// Its part of a link that it shares.
    pub(crate) weight: f64,
    /// Most bytes per second of this transfer.
    pub(crate) rate_max: f64,
    /// It does not move for now.
    pub(crate) is_blocked: bool,
    pub(crate) tag: T,
}

#[derive(Debug)]
struct Moving<T> {
    flow: Flow<T>,
    rate: f64,
}

/// The links, what they carry, and the time.
#[derive(Debug)]
pub(crate) struct Fluid<T> {
    /// Bytes per second of each link.
    links: Vec<f64>,
    moving: Vec<Moving<T>>,
    /// Have arrived by now, in order.
    arrived: VecDeque<T>,
    now_s: f64,
    /// The rates are to be found again.
    is_stale: bool,
}

impl<T> Fluid<T> {
    pub(crate) fn new() -> Self {
        Self { links: Vec::new(), moving: Vec::new(), arrived: VecDeque::new(), now_s: 0.0, is_stale: false }
    }

    /// Bytes per second of every link.
    pub(crate) fn set_links(&mut self, links: Vec<f64>) {
        self.links = links;
        self.is_stale = true;
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.moving.is_empty() && self.arrived.is_empty()
    }

    /// Begins a transfer; `tag` comes back when all of it has arrived.
    pub(crate) fn send(&mut self, flow: Flow<T>) {
        if flow.links.is_empty() || flow.bytes <= NOTHING_BYTES {
            self.arrived.push_back(flow.tag);
        } else {
            self.moving.push(Moving { flow, rate: 0.0 });
            self.is_stale = true;
        }
    }

    /// Stops the transfers of which `is_blocked` says so, and lets the others go on.
    pub(crate) fn block(&mut self, mut is_blocked: impl FnMut(&T) -> bool) {
        self.moving.iter_mut().for_each(|moving| moving.flow.is_blocked = is_blocked(&moving.flow.tag));
        self.is_stale = true;
    }

    /// Seconds since the start at which the next transfer has arrived, if the rates stay as they are.
    pub(crate) fn next_s(&mut self) -> Option<f64> {
        if !self.arrived.is_empty() {
            return Some(self.now_s);
        }
        if self.is_stale {
            self.share();
        }
        let rising = self.moving.iter().filter(|moving| moving.rate > 0.0);
        let takes = rising.map(|moving| moving.flow.bytes / moving.rate).reduce(f64::min);
        takes.map(|takes| self.now_s + takes)
    }

    /// Lets all flow until then, which is not after [`Self::next_s`].
    pub(crate) fn advance(&mut self, now_s: f64) {
        let seconds = now_s - self.now_s;
        if seconds <= 0.0 && !self.has_ended() {
            return;
        }
        if self.is_stale {
            self.share();
        }
        self.now_s = self.now_s.max(now_s);
        for moving in &mut self.moving {
            moving.flow.bytes -= moving.rate * seconds.max(0.0);
        }
        if self.has_ended() {
            let (ended, going): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.moving).into_iter().partition(Moving::has_ended);
            self.moving = going;
            self.arrived.extend(ended.into_iter().map(|moving| moving.flow.tag));
            self.is_stale = true;
        }
    }

    /// A transfer that has arrived.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.arrived.pop_front()
    }

    fn has_ended(&self) -> bool {
        self.moving.iter().any(Moving::has_ended)
    }

    /// Progressive filling: all rates rise together until a link is full or a transfer has all that it may have; these
    /// transfers keep what they have.
    fn share(&mut self) {
        let mut free = self.links.clone();
        let mut users: Vec<Vec<usize>> = vec![Vec::new(); free.len()];
        let mut is_rising = vec![false; self.moving.len()];
        for (index, moving) in self.moving.iter_mut().enumerate() {
            moving.rate = 0.0;
            is_rising[index] = !moving.flow.is_blocked;
            if is_rising[index] {
                moving.flow.links.iter().for_each(|&link| users[link].push(index));
            }
        }
        let weight = |users: &Vec<usize>| users.iter().map(|&index| self.moving[index].flow.weight).sum();
        let mut rising: Vec<f64> = users.iter().map(weight).collect();
        let mut n_rising: Vec<usize> = users.iter().map(Vec::len).collect();
        loop {
            // What a transfer of weight 1 gets when the first link is full, and which link that is.
            let links = (0..free.len()).filter(|&link| n_rising[link] > 0);
            let shares = links.map(|link| (link, free[link].max(0.0) / rising[link]));
            let Some((link, share)) = shares.min_by(|a, b| a.1.total_cmp(&b.1)) else { break };
            let capped = (0..self.moving.len()).filter(|&index| is_rising[index]);
            let caps = capped.map(|index| (index, self.moving[index].flow.cap()));
            let first = caps.min_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, cap)| *cap < share);
            let (settled, share) = match first {
                Some((index, cap)) => (vec![index], cap),
                None => (users[link].clone(), share),
            };
            for index in settled {
                if !std::mem::replace(&mut is_rising[index], false) {
                    continue;
                }
                let moving = &mut self.moving[index];
                moving.rate = share * moving.flow.weight;
                for &link in &moving.flow.links {
                    free[link] -= moving.rate;
                    rising[link] -= moving.flow.weight;
                    n_rising[link] -= 1;
                }
            }
        }
        self.is_stale = false;
    }
}

impl<T> Flow<T> {
    /// What a transfer of weight 1 has when this one has all that it may have.
    fn cap(&self) -> f64 {
        self.rate_max / self.weight
    }
}

impl<T> Moving<T> {
    fn has_ended(&self) -> bool {
        self.flow.bytes <= NOTHING_BYTES.max(self.rate * SAME_MOMENT_S)
    }
}

#[cfg(test)]
#[path = "fluid_tests.rs"]
mod tests;
