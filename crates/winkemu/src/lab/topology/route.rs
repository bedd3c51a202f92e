//! Shortest routes from every node to every subnet.

use std::collections::VecDeque;

use super::{Interface, Node, TopologyError, builder::at_node, other_host, other_host6};

pub(super) fn add_routes(nodes: &[Node], ends: &[(usize, usize)]) -> Result<(), TopologyError> {
    for (start, node) in nodes.iter().enumerate() {
        for (target, first_hop) in first_hops(start, nodes.len(), ends) {
            let by = node
                .interfaces
                .iter()
                .find(|interface| interface.edge == first_hop);
            let by = by.expect("a first hop is an edge of the node");
            let to = &nodes[ends[target].0].interfaces;
            let to = to.iter().find(|interface| interface.edge == target);
            let to = to.expect("an edge has an interface at both ends");
            add_route(node, to, by)?;
        }
    }
    Ok(())
}

/// First hops: for each edge that does not touch `start`, the edge of `start` that leads there.
fn first_hops(start: usize, nodes: usize, ends: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let mut first = vec![None; nodes];
    let mut queue = VecDeque::from([start]);
    let mut found = Vec::new();
    let mut reached_edges = vec![false; ends.len()];
    while let Some(node) = queue.pop_front() {
        for (edge, &(a, b)) in ends.iter().enumerate() {
            if (a != node && b != node) || std::mem::replace(&mut reached_edges[edge], true) {
                continue;
            }
            let far = if a == node { b } else { a };
            match first[node] {
                Some(hop) => found.push((edge, hop)),
                None => debug_assert_eq!(node, start),
            }
            if far != start && first[far].is_none() {
                first[far] = first[node].or(Some(edge));
                queue.push_back(far);
            }
        }
    }
    found
}

fn add_route(node: &Node, to: &Interface, by: &Interface) -> Result<(), TopologyError> {
    let v4 = node.netns.add_route(
        to.ipv4.trunc().into(),
        Some(other_host(by.ipv4.addr()).into()),
        None,
    );
    let v6 = || {
        let gateway = other_host6(by.ipv6.addr()).into();
        node.netns
            .add_route(to.ipv6.trunc().into(), Some(gateway), None)
    };
    v4.and_then(|()| v6())
        .map_err(|err| at_node(&node.name, err))
}
