//! Latencies between cities of the world, made from where they are.
//!
//! The paper has pings between servers in 227 cities (WonderNetwork). These are made like them: a message goes along the great circle
//! between two cities, [`STRETCH`] times as far, at the speed of light in glass, and over the last mile of both ends.

use std::time::Duration;

use barnraise_simulation::{Latency, Network, NodeBandwidth, NodeId};

use super::cities::CITIES;

const EARTH_RADIUS_KM: f64 = 6371.0;
/// Of light in glass: two thirds of that in vacuum.
const GLASS_KM_PER_S: f64 = 200_000.0;
/// Of paths through the Internet, to the great circle: the rule of thumb that Bozkurt et al. quote (*Dissecting Latency in the
/// Internet's Fiber Infrastructure*, arXiv:1811.10737, abstract).
const STRETCH: f64 = 2.1;
/// From a home to its provider, one way: an assumption.
const LAST_MILE_S: f64 = 0.005;

/// Great-circle distance of two cities, by the haversine formula, in kilometres.
fn distance_km(one: usize, other: usize) -> f64 {
    let [(north, east), (other_north, other_east)] = [one, other].map(|at| {
        let (_, north, east) = CITIES[at];
        (north.to_radians(), east.to_radians())
    });
    let half_chord = ((other_north - north) / 2.0).sin().powi(2)
        + north.cos() * other_north.cos() * ((other_east - east) / 2.0).sin().powi(2);
    2.0 * EARTH_RADIUS_KM * half_chord.sqrt().min(1.0).asin()
}

/// One way, in seconds.
fn latency_s(one: usize, other: usize) -> f64 {
    distance_km(one, other) * STRETCH / GLASS_KM_PER_S + 2.0 * LAST_MILE_S
}

/// The city with the lowest median latency to the others: the paper's server is there (§4.3).
fn best_connected() -> usize {
    let median = |one: usize| {
        let mut latencies: Vec<f64> = (0..CITIES.len()).map(|other| latency_s(one, other)).collect();
        latencies.sort_by(f64::total_cmp);
        latencies[latencies.len() / 2]
    };
    (0..CITIES.len()).min_by(|one, other| median(*one).total_cmp(&median(*other))).unwrap_or_default()
}

/// A link of a home: 16 Mbit/s up and 48 Mbit/s down. The paper does not say what its peers' links carry.
pub(super) fn home_link() -> NodeBandwidth {
    NodeBandwidth::new(2e6, 6e6)
}

/// A network of `n` peers, with latencies for the first `n_places`: they are in the cities in turn, the first one in the city that is
/// connected best. Nothing is lost.
pub(super) fn network(n: usize, n_places: usize) -> Network {
    let first = best_connected();
    let city = |at: usize| (first + at) % CITIES.len();
    let latency =
        |from: usize, to: usize| Latency::Constant(Duration::from_secs_f64(latency_s(city(from), city(to))));
    let row = |from: usize| -> Vec<Latency> { (0..n_places).map(|to| latency(from, to)).collect() };
    let mut network = Network::new(n, Latency::Matrix((0..n_places).map(row).collect()));
    (0..n).for_each(|at| network.set_bandwidth(NodeId(at), home_link()));
    network
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn city(name: &str) -> usize {
        CITIES.iter().position(|(of, ..)| *of == name).unwrap()
    }

    #[test]
    fn distances_are_those_of_a_globe() {
        for (one, other, km) in
            [("London", "New York", 5570.0), ("Tokyo", "Sydney", 7820.0), ("Paris", "Berlin", 878.0)]
        {
            let distance = distance_km(city(one), city(other));
            assert!((distance - km).abs() < 30.0, "{one} to {other}: {distance} km");
            assert!((distance - distance_km(city(other), city(one))).abs() < 1e-6);
        }
        assert!(distance_km(3, 3).abs() < 1e-6);
    }

    #[test]
    fn each_city_is_one_place_on_the_globe() {
        let names: std::collections::BTreeSet<&str> = CITIES.iter().map(|(name, ..)| *name).collect();
        assert_eq!(names.len(), CITIES.len());
        assert!(CITIES.iter().all(|(_, north, east)| north.abs() < 70.0 && east.abs() <= 180.0));
    }

    /// The paper's timeout of 2 s is above the largest latency (§4.7).
    #[test]
    fn no_ping_takes_as_long_as_the_timeout() {
        let all = (0..CITIES.len()).flat_map(|one| (0..CITIES.len()).map(move |other| latency_s(one, other)));
        let largest = all.fold(0.0, f64::max);
        assert!((0.2..0.25).contains(&largest), "{largest} s one way");
    }
}
