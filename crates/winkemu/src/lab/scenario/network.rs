//! Nodes of a scenario, and the edges between them.

use std::ops::Range;

use toml::Spanned;

use super::{error::Findings, raw::RawScenario};
use crate::{
    lab::topology::is_node_name,
    link::{Direction, LinkOptions},
};

/// Element of a row that stands for the unnamed link.
pub(super) const LINK: &str = "link";

/// Nodes and edges without cycles: the path, and its branches.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Network {
    /// Names in the order of the file.
    nodes: Vec<String>,
    edges: Vec<Edge>,
    /// Last node of the path.
    last: String,
}

/// Edge between two neighbours in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// First node.
    pub a: String,
    /// Second node.
    pub b: String,
    /// Link between the nodes; `None` is Ethernet.
    pub link: Option<String>,
}

impl Edge {
    /// Node at the other end.
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

    /// First and last node of the path; `None` if it is empty.
    pub fn ends(&self) -> Option<(&str, &str)> {
        Some((self.nodes.first()?, &self.last))
    }

    /// Reports whether the network has this node.
    pub fn contains(&self, node: &str) -> bool {
        self.nodes().any(|known| known == node)
    }

    /// Edges of a node, in the order of the file.
    pub fn edges_of<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Edge> {
        self.edges.iter().filter(move |edge| edge.touches(node))
    }

    /// Edges from one node to another, each with its direction; empty if either node is unknown.
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

    /// Names of all nodes, for messages.
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
            "must hold two or more nodes, such as [\"client\", \"pepd\", \"link\", \"server\"]";
        reader.findings.add(raw.path.span(), "path", message);
    }
    for (index, branch) in raw.branches.iter().enumerate() {
        let key = format!("branches[{}]", index + 1);
        reader.branch(branch, &key);
    }
    let Reader { network, used, .. } = reader;
    for (link, _) in links {
        if !used.contains(link) {
            let message = format!("does not hold the link `{link}`, which is defined");
            findings.add(raw.path.span(), "path", message);
        }
    }
    network
}

/// Element of a row.
enum Element<'a> {
    Node(&'a str),
    Link(&'a str),
}

struct Reader<'a, 'b> {
    network: Network,
    links: &'a [(String, LinkOptions)],
    /// Links that a row has used already.
    used: Vec<String>,
    findings: &'a mut Findings<'b>,
}

impl Reader<'_, '_> {
    /// Adds a row to the network, and returns its nodes.
    fn row(&mut self, raw: &Spanned<Vec<Spanned<String>>>, key: &str) -> Vec<String> {
        let mut nodes: Vec<String> = Vec::new();
        let mut pending = None;
        for element in raw.get_ref() {
            match self.element(element, key) {
                Some(Element::Link(link)) => {
                    if nodes.is_empty() || pending.is_some() {
                        let message = format!("link `{link}` needs a node on either side");
                        self.findings.add(element.span(), key, message);
                    }
                    self.use_link(link, element.span(), key);
                    pending = Some(link.to_owned());
                }
                Some(Element::Node(node)) if nodes.iter().any(|known| known == node) => {
                    let message = format!("node `{node}` appears twice");
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

    /// Adds a branch: a row that shares one node with the network so far.
    fn branch(&mut self, raw: &Spanned<Vec<Spanned<String>>>, key: &str) {
        let before = self.network.clone();
        let shared = |nodes: &[String]| nodes.iter().filter(|node| before.contains(node)).count();
        let row = self.row(raw, key);
        if row.len() < 2 || shared(&row) != 1 {
            let message = "must hold exactly one node of the path or of an earlier branch, and \
                           new nodes: [\"client2\", \"near2\", \"link2\", \"hub\"]";
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
            "holds `link`, but the table [link] is missing".to_owned()
        } else if !is_node_name(name) {
            format!(
                "`{name}` is not a node name: 1 to 15 letters, digits, `-` or `_`, and not `lo`"
            )
        } else {
            return Some(Element::Node(name));
        };
        self.findings.add(element.span(), key, message);
        None
    }

    fn use_link(&mut self, link: &str, span: Range<usize>, key: &str) {
        if self.used.iter().any(|used| used == link) {
            let message = format!("link `{link}` is already between other nodes");
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
