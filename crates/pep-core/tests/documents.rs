//! Configurations in the documents load.

use std::{
    fs,
    path::{Path, PathBuf},
};

use pep_core::config;

/// Sections around a single section of a document.
const INTERCEPT: &str = "[intercept]\nlan = [\"eth0\"]\n";
const PEERS: &str = "[identity]\nkey_file = \"pepd.key\"\n\
                     [peer.hub]\npublic_key = \"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\"\n\
                     [peer.boat]\npublic_key = \"ISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+P0A=\"\n";

/// A TOML block of a document.
struct Block {
    /// Line of the document before the block.
    line: usize,
    text: String,
}

/// Pages whose TOML belongs to winkemu's scenarios.
const SCENARIOS: [&str; 2] = ["lab.md", "winkemu.md"];

fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut documents = vec![root.join("README.md")];
    let mut directories = vec![root.join("docs")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("there is documentation") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md")
                && !SCENARIOS.iter().any(|page| path.ends_with(page))
            {
                documents.push(path);
            }
        }
    }
    documents
}

/// Returns the fenced blocks of TOML, and blocks indented by four spaces or more that start with a
/// section.
fn blocks(document: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    // Indentation of the lines of the last block.
    let mut inside: Option<&str> = None;
    for (number, line) in document.lines().enumerate() {
        let text = line.trim_start();
        let indent = &line[..line.len() - text.len()];
        if let Some(prefix) = inside {
            let ends = text.starts_with("```") || !(text.is_empty() || line.starts_with(prefix));
            if !ends {
                let block = blocks.last_mut().expect("one has begun");
                block.text += line.strip_prefix(prefix).unwrap_or_default();
                block.text += "\n";
                continue;
            }
            inside = None;
        }
        let is_section = indent.len() >= 4 && text.starts_with('[') && !text.contains("](");
        if text == "```toml" || is_section {
            let begun = if is_section { text } else { "" };
            inside = Some(indent);
            blocks.push(Block {
                line: number + 1,
                text: format!("{begun}\n"),
            });
        }
    }
    blocks
}

/// Returns the whole configuration that a block is, or is a part of. `None` for another program's,
/// or for keys of a peer without its public key.
fn whole(block: &str) -> Option<String> {
    let has = |section: &str| block.lines().any(|line| line.starts_with(section));
    if has("[Service]") || (has("[peer.") && !block.contains("public_key")) {
        return None;
    }
    let mut text = block.to_owned();
    if !has("[intercept]") {
        text += INTERCEPT;
        if !has("[peer.") {
            text += PEERS;
        }
    }
    Some(text)
}

#[test]
fn every_configuration_in_the_documents_loads() {
    let mut loaded = 0;
    let mut wrong = Vec::new();
    for path in documents() {
        let document = fs::read_to_string(&path).expect("readable");
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        for block in blocks(&document) {
            let Some(text) = whole(&block.text) else {
                continue;
            };
            loaded += 1;
            if let Err(errors) = config::parse(&text) {
                let line = block.line;
                wrong.extend(errors.iter().map(|error| format!("{name}:{line}: {error}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(loaded >= 14, "only {loaded} were found");
}

#[test]
fn a_configuration_that_does_not_load_is_found() {
    let document =
        "text\n\n    [intercept]\n    lan = []\n\n    [limits]\n\ntext\n```toml\nflows = 1\n```\n";
    let found: Vec<_> = blocks(document)
        .into_iter()
        .map(|block| block.text)
        .collect();
    assert_eq!(
        found,
        ["[intercept]\nlan = []\n\n[limits]\n\n", "\nflows = 1\n"]
    );
    assert!(config::parse(&whole(&found[0]).expect("pepd's")).is_err());
}
