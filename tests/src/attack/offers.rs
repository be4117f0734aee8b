//! Attacks by contributions.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use barnraise_protocol::commitment::SampleId;
use barnraise_swarm::random::SplitMix64;
use barnraise_swarm::recomputation::PROBATION;

use super::key::{AttackKey, OfferOutcome};

/// Between two acts of a key: keys do as much together as they like.
const EVERY: Duration = Duration::from_millis(100);
/// How much longer than honest ones gradients are: not so much that each is looked at.
const SCALE: f32 = 3.5;
/// How many times as large as what was found right of it a contribution of a key may be without being looked at.
const TIMES_AS_LARGE: u32 = 4;
/// Samples of the honest gradient that forged values are made of.
const SAMPLES_OF_FORGERY: u32 = 8;

/// Reports all that one may report, and contributes nothing.
pub(super) async fn claim(key: &AttackKey) -> Result<()> {
    let mut session = key.join().await?;
    loop {
        let epoch = key.shared.state().await?.epoch;
        session.report(epoch, key.n_samples_max()).await?;
        key.shared.counters.act();
        tokio::time::sleep(EVERY).await;
    }
}

pub(super) async fn random(key: &mut AttackKey) -> Result<()> {
    let mut random = SplitMix64::new(key.number as u64);
    let mut any = move || (random.next_u64() >> 40) as f32 / (1 << 24) as f32 - 0.5;
    let n_samples = key.n_samples_max();
    offer_forged(key, n_samples, move |values| values.iter_mut().for_each(|value| *value = 0.01 * any()))
        .await
}

pub(super) async fn flipped(key: &mut AttackKey) -> Result<()> {
    earn_trust(key).await?;
    let n_samples = TIMES_AS_LARGE * key.shared.run.scheme.micro_batch_size();
    offer_forged(key, n_samples, |values| values.iter_mut().for_each(|value| *value = -*value)).await
}

pub(super) async fn scaled(key: &mut AttackKey) -> Result<()> {
    earn_trust(key).await?;
    let n_samples = TIMES_AS_LARGE * key.shared.run.scheme.micro_batch_size();
    offer_forged(key, n_samples, |values| values.iter_mut().for_each(|value| *value *= SCALE)).await
}

/// By the first parameters that the machine saw, as if they were those of now.
pub(super) async fn stale(key: &mut AttackKey) -> Result<()> {
    earn_trust(key).await?;
    let mut session = key.join().await?;
    loop {
        tokio::time::sleep(EVERY).await;
        let state = key.shared.state().await?;
        let n_samples = (TIMES_AS_LARGE * key.shared.run.scheme.micro_batch_size()).min(key.n_samples_max());
        session.report(state.epoch, n_samples).await?;
        let old = Arc::clone(&key.shared.oldest);
        let work = key.shared.gradient_worker.work(old, n_samples).await?;
        key.shared.counters.act();
        if key.offer(&state, &work.samples, &work.values).await? == OfferOutcome::Convicted {
            return Ok(());
        }
    }
}

/// Honest contributions, until those of its key are not looked at one by one any more.
async fn earn_trust(key: &mut AttackKey) -> Result<()> {
    let mut session = key.join().await?;
    let mut n_right = 0;
    while n_right < PROBATION {
        let state = key.shared.state().await?;
        let work = key.work(&state, key.shared.run.scheme.micro_batch_size()).await?;
        session.report(state.epoch, work.samples.len() as u32).await?;
        key.shared.counters.act();
        match key.offer(&state, &work.samples, &work.values).await? {
            OfferOutcome::Counted => n_right += 1,
            OfferOutcome::Refused => tokio::time::sleep(EVERY).await,
            OfferOutcome::Convicted => anyhow::bail!("an honest contribution is none"),
        }
    }
    Ok(())
}

/// Contributions of so many samples whose values `forge` makes of honest ones.
async fn offer_forged(key: &mut AttackKey, n_samples: u32, mut forge: impl FnMut(&mut [f32])) -> Result<()> {
    let mut session = key.join().await?;
    let mut random = SplitMix64::new(key.number as u64);
    let n_samples = n_samples.min(key.n_samples_max());
    loop {
        tokio::time::sleep(EVERY).await;
        let state = key.shared.state().await?;
        session.report(state.epoch, n_samples).await?;
        let mut values =
            key.shared.gradient_worker.work(Arc::clone(&state), SAMPLES_OF_FORGERY).await?.values;
        forge(&mut values);
        let samples = any_samples(key, &mut random, n_samples);
        key.shared.counters.act();
        if key.offer(&state, &samples, &values).await? == OfferOutcome::Convicted {
            return Ok(());
        }
    }
}

/// Samples of the run's data, by chance.
pub(super) fn any_samples(key: &AttackKey, random: &mut SplitMix64, n_samples: u32) -> Vec<SampleId> {
    let shards = &key.shared.run.data.manifest.shards;
    let mut one = || {
        let shard = random.below(shards.len());
        let index = random.below(shards[shard].n_samples as usize);
        SampleId { shard: shard as u32, index: index as u32 }
    };
    (0..n_samples).map(|_| one()).collect()
}

/// One honest gradient in each epoch, under every key and under new numbers, its samples in another order.
pub(super) async fn again(key: &mut AttackKey) -> Result<()> {
    let mut session = key.join().await?;
    let mut random = SplitMix64::new(key.number as u64);
    loop {
        tokio::time::sleep(EVERY).await;
        let state = key.shared.state().await?;
        let work = {
            let mut common = key.shared.common.lock().await;
            match &*common {
                Some(work) if work.state.epoch == state.epoch => Arc::clone(work),
                _ => {
                    let work = Arc::new(key.work(&state, key.shared.run.scheme.micro_batch_size()).await?);
                    Arc::clone(common.insert(work))
                }
            }
        };
        let mut samples = work.samples.clone();
        random.shuffle(&mut samples);
        session.report(state.epoch, samples.len() as u32).await?;
        key.shared.counters.act();
        key.offer(&state, &samples, &work.values).await?;
    }
}

/// Honest contributions of one sample, one after the other.
pub(super) async fn crumbs(key: &mut AttackKey) -> Result<()> {
    let mut session = key.join().await?;
    loop {
        let state = key.shared.state().await?;
        let work = key.work(&state, 1).await?;
        session.report(state.epoch, 1).await?;
        key.shared.counters.act();
        if key.offer(&state, &work.samples, &work.values).await? != OfferOutcome::Counted {
            tokio::time::sleep(EVERY).await;
        }
    }
}
