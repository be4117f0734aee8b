use super::*;

/// Nodes with these upload and download rates: the upload of node `n` is link `2 n`, its download link `2 n + 1`.
fn links(rates: &[(f64, f64)]) -> Fluid<&'static str> {
    let mut fluid = Fluid::new();
    fluid.set_links(rates.iter().flat_map(|&(up, down)| [up, down]).collect());
    fluid
}

fn send(
    fluid: &mut Fluid<&'static str>,
    (from, to): (usize, usize),
    bytes: f64,
    weight: f64,
    tag: &'static str,
) {
    let links = if from == to { Vec::new() } else { vec![2 * from, 2 * to + 1] };
    fluid.send(Flow { links, bytes, weight, rate_max: f64::INFINITY, is_blocked: false, tag });
}

/// Tags with the moments at which they arrive.
fn all(fluid: &mut Fluid<&'static str>) -> Vec<(&'static str, f64)> {
    let mut arrived = Vec::new();
    while let Some(at) = fluid.next_s() {
        fluid.advance(at);
        arrived.extend(std::iter::from_fn(|| fluid.pop()).map(|tag| (tag, at)));
    }
    arrived
}

#[test]
fn two_transfers_share_a_link_and_the_longer_one_gets_the_rest() {
    let mut network = links(&[(10.0, 10.0), (9.0, 9.0), (9.0, 9.0)]);
    send(&mut network, (0, 1), 10.0, 1.0, "short");
    send(&mut network, (0, 2), 28.0, 1.0, "long");
    let arrived = all(&mut network);
    // 5 B/s each for 2 s; then the long one has 18 bytes left at the 9 B/s of its receiver.
    assert_eq!(arrived.len(), 2);
    assert_eq!(arrived[0].0, "short");
    assert!((arrived[0].1 - 2.0).abs() < 1e-9, "{arrived:?}");
    assert!((arrived[1].1 - 4.0).abs() < 1e-9, "{arrived:?}");
}

#[test]
fn a_slow_receiver_leaves_its_share_of_the_sender_to_the_others() {
    let mut network = links(&[(10.0, 1.0), (1.0, 2.0), (1.0, 100.0)]);
    send(&mut network, (0, 1), 4.0, 1.0, "slow");
    send(&mut network, (0, 2), 16.0, 1.0, "fast");
    let arrived = all(&mut network);
    // 2 B/s and 8 B/s.
    assert!(arrived.iter().all(|(_, at)| (at - 2.0).abs() < 1e-9), "{arrived:?}");
}

#[test]
fn a_shared_link_is_divided_by_weight() {
    let mut network = links(&[(4.0, 4.0), (9.0, 9.0), (9.0, 9.0)]);
    send(&mut network, (0, 1), 3.0, 3.0, "heavy");
    send(&mut network, (0, 2), 1.0, 1.0, "light");
    let arrived = all(&mut network);
    assert!(arrived.len() == 2 && arrived.iter().all(|(_, at)| (at - 1.0).abs() < 1e-9), "{arrived:?}");
}

#[test]
fn a_transfer_that_may_have_little_leaves_the_rest_to_the_others() {
    let mut network = links(&[(10.0, 10.0), (9.0, 9.0), (9.0, 9.0)]);
    network.send(Flow {
        links: vec![0, 3],
        bytes: 4.0,
        weight: 1.0,
        rate_max: 2.0,
        is_blocked: false,
        tag: "capped",
    });
    send(&mut network, (0, 2), 16.0, 1.0, "rest");
    let arrived = all(&mut network);
    assert!(arrived.len() == 2 && arrived.iter().all(|(_, at)| (at - 2.0).abs() < 1e-9), "{arrived:?}");
}

#[test]
fn a_blocked_transfer_leaves_its_share_and_goes_on_later() {
    let mut network = links(&[(2.0, 2.0), (9.0, 9.0), (9.0, 9.0)]);
    send(&mut network, (0, 1), 2.0, 1.0, "blocked");
    send(&mut network, (0, 2), 2.0, 1.0, "free");
    network.block(|tag| *tag == "blocked");
    assert_eq!(network.next_s(), Some(1.0));
    network.advance(1.0);
    assert_eq!((network.pop(), network.next_s()), (Some("free"), None));
    network.advance(5.0);
    network.block(|_| false);
    assert_eq!(all(&mut network), [("blocked", 6.0)]);
}

#[test]
fn what_stays_in_a_node_costs_nothing() {
    let mut network = links(&[(1.0, 1.0)]);
    send(&mut network, (0, 0), 1e12, 1.0, "here");
    assert_eq!(all(&mut network), [("here", 0.0)]);
}

#[test]
fn no_link_carries_more_than_it_can() {
    let rates = [(3.0, 5.0), (7.0, 2.0), (4.0, 4.0), (1.0, 9.0)];
    let mut network = links(&rates);
    for from in 0..4 {
        for to in 0..4 {
            send(&mut network, (from, to), 100.0, 1.0, "");
        }
    }
    network.share();
    for (link, rate) in rates.iter().flat_map(|&(up, down)| [up, down]).enumerate() {
        let users = network.moving.iter().filter(|moving| moving.flow.links.contains(&link));
        assert!(users.map(|moving| moving.rate).sum::<f64>() <= rate + 1e-9);
    }
    // Max-min: each transfer has a full link on its way.
    assert!(network.moving.iter().all(|moving| moving.rate > 0.0));
}
