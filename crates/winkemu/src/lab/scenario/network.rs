//! The nodes of a scenario, and what joins them.

use std::ops::Range;

use toml::Spanned;

use super::{error::Findings, raw::RawScenario};
use crate::{
    lab::topology::is_node_name,
    link::{Direction, LinkOptions},
};

/// The element of a row that is a link without a name of its own.
pub(super) const LINK: &str = "link";

/// Nodes and edges without a circle: the path, and the branches that leave it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Network {
    /// Names, in the order of the file.
    nodes: Vec<String>,
    edges: Vec<Edge>,
    /// Where the path ends.
    last: String,
}

/// What joins two nodes that stand beside each other in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// The one that stands first.
    pub a: String,
    /// The one behind it.
    pub b: String,
    /// The link between them; `None` is Ethernet.
    pub link: Option<String>,
}

impl Edge {
    /// The other end.
    pub fn other(&self, node: &str) -> &str {
        if self.a == node { &self.b } else { &self.a }
    }

    fn touches(&self, node: &str) -> bool {
        self.a == node || self.b == node
    }
}

impl Network {
    /// All nodes, in the order of the file.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(String::as_str)
    }

    /// All edges, in the order of the file.
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// Where the path begins and where it ends; `None` where it is empty.
    pub fn ends(&self) -> Option<(&str, &str)> {
        Some((self.nodes.first()?, &self.last))
    }

    /// Whether there is such a node.
    pub fn contains(&self, node: &str) -> bool {
        self.nodes().any(|known| known == node)
    }

    /// The edges of a node, in the order of the file.
    pub fn edges_of<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Edge> {
        self.edges.iter().filter(move |edge| edge.touches(node))
    }

    /// The edges from one node to another, and in which direction each is crossed; none where one of
    /// them is not there.
    pub fn way<'a>(&'a self, from: &'a str, to: &str) -> Vec<(&'a Edge, Direction)> {
        self.search(from, None, to).unwrap_or_default()
    }

    fn search<'a>(
        &'a self,
        at: &'a str,
        by: Option<&Edge>,
        to: &str,
    ) -> Option<Vec<(&'a Edge, Direction)>> {
        if at == to {
            return Some(Vec::new());
        }
        let mut onward = self.edges_of(at).filter(|edge| Some(*edge) != by);
        onward.find_map(|edge| {
            let rest = self.search(edge.other(at), Some(edge), to)?;
            let direction = if edge.a == at {
                Direction::AtoB
            } else {
                Direction::BtoA
            };
            Some([vec![(edge, direction)], rest].concat())
        })
    }

    /// The names of all nodes, for messages.
    pub(super) fn names(&self) -> String {
        self.nodes.join(", ")
    }
}

/// Reads the path and the branches.
pub(super) fn read(
    raw: &RawScenario,
    links: &[(String, LinkOptions)],
    findings: &mut Findings<'_>,
) -> Network {
    let mut reader = Reader {
        network: Network::default(),
        links,
        used: Vec::new(),
        findings,
    };
    let row = reader.row(&raw.path, "path");
    reader.network.last = row.last().cloned().unwrap_or_default();
    if row.len() < 2 {
        let message =
            "must hold two nodes at least, such as [\"client\", \"pepd\", \"link\", \"server\"]";
        reader.findings.add(raw.path.span(), "path", message);
    }
    for (index, branch) in raw.branches.iter().enumerate() {
        let key = format!("branches[{}]", index + 1);
        reader.branch(branch, &key);
    }
    let Reader { network, used, .. } = reader;
    for (link, _) in links {
        if !used.contains(link) {
            let message = format!("does not hold the link `{link}`, which is described");
            findings.add(raw.path.span(), "path", message);
        }
    }
    network
}

/// An element of a row that may stand there.
enum Element<'a> {
    Node(&'a str),
    Link(&'a str),
}

struct Reader<'a, 'b> {
    network: Network,
    links: &'a [(String, LinkOptions)],
    /// Links that stand in a row already.
    used: Vec<String>,
    findings: &'a mut Findings<'b>,
}

impl Reader<'_, '_> {
    /// Adds a row to the network, and gives its nodes.
    fn row(&mut self, raw: &Spanned<Vec<Spanned<String>>>, key: &str) -> Vec<String> {
        let mut nodes: Vec<String> = Vec::new();
        let mut pending = None;
        for element in raw.get_ref() {
            match self.element(element, key) {
                Some(Element::Link(link)) => {
                    if nodes.is_empty() || pending.is_some() {
                        let message = format!("the link `{link}` needs a node on either side");
                        self.findings.add(element.span(), key, message);
                    }
                    self.use_link(link, element.span(), key);
                    pending = Some(link.to_owned());
                }
                Some(Element::Node(node)) if nodes.iter().any(|known| known == node) => {
                    let message = format!("the node `{node}` stands in it twice");
                    self.findings.add(element.span(), key, message);
                }
                Some(Element::Node(node)) => {
                    self.add(nodes.last(), node, pending.take());
                    nodes.push(node.to_owned());
                }
                None => {}
            }
        }
        if pending.is_some() {
            let message = "ends with a link: a node must follow";
            self.findings.add(raw.span(), key, message);
        }
        nodes
    }

    /// Adds a row that shares one node with those before it.
    fn branch(&mut self, raw: &Spanned<Vec<Spanned<String>>>, key: &str) {
        let before = self.network.clone();
        let shared = |nodes: &[String]| nodes.iter().filter(|node| before.contains(node)).count();
        let row = self.row(raw, key);
        if row.len() < 2 || shared(&row) != 1 {
            let message = "must hold exactly one node that stands in the path, or in a branch before it, and \
                           others that do not: [\"client2\", \"near2\", \"link2\", \"hub\"]";
            self.findings.add(raw.span(), key, message);
            self.network = before;
        }
    }

    fn element<'a>(&mut self, element: &'a Spanned<String>, key: &str) -> Option<Element<'a>> {
        let name = element.get_ref();
        if self.links.iter().any(|(link, _)| link == name) {
            return Some(Element::Link(name));
        }
        let message = if name == LINK {
            "holds `link`, but there is no table [link]".to_owned()
        } else if !is_node_name(name) {
            format!("`{name}` is no node name: 1 to 15 letters, digits, `-` or `_`, and not `lo`")
        } else {
            return Some(Element::Node(name));
        };
        self.findings.add(element.span(), key, message);
        None
    }

    fn use_link(&mut self, link: &str, span: Range<usize>, key: &str) {
        if self.used.iter().any(|used| used == link) {
            let message = format!("the link `{link}` stands between other nodes already");
            self.findings.add(span, key, message);
        }
        self.used.push(link.to_owned());
    }

    fn add(&mut self, before: Option<&String>, node: &str, link: Option<String>) {
        if !self.network.contains(node) {
            self.network.nodes.push(node.to_owned());
        }
        if let Some(before) = before {
            self.network.edges.push(Edge {
                a: before.clone(),
                b: node.to_owned(),
                link,
            });
        }
    }
}
