//! Datagrams, frames, parts, terms and codes, as docs/protocol.md draws them.
//!
//! A figure draws a frame or part as a row of cells, and its name behind them:
//!
//! ```text
//!  | 0x06 | code: 8 | length     | reason, UTF-8, at most 256 B   |  CLOSE
//! ```
//!
//! `: N` is a number of bits, `length` the length of the next cell, `to the end` the rest. Other
//! cells are variable-length integers.

/// The protocol's description.
pub const PROTOCOL: &str = include_str!("../../../docs/protocol.md");

/// Description of the messages of packet mode.
const MESSAGES: &str = include_str!("../../boosters/src/wire.rs");

/// Content of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Bits of a number.
    Fixed(usize),
    /// Variable-length integer.
    Number,
    /// Length of the next field.
    Length,
    /// As many bytes as the length says, at most so many.
    Bytes(usize),
    /// All that follows.
    Rest,
}

/// A field of a frame or part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name of the field.
    pub name: String,
    /// Content.
    pub content: Content,
}

/// A datagram, frame or part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// First and last type; mostly the same.
    pub types: (u8, u8),
    /// Name, as in the text.
    pub name: String,
    /// Fields after the type, in their order.
    pub fields: Vec<Field>,
}

/// A field of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportField {
    /// Name of the field.
    pub name: String,
    /// Flag with which it is present; 0 for always.
    pub flag: u8,
    /// List that it belongs to, by the name of its number.
    pub list: Option<String>,
}

/// Text of a section with its subsections, without the heading. Empty if there is none.
pub fn section(heading: &str) -> &'static str {
    let level = heading.bytes().take_while(|byte| *byte == b'#').count();
    let Some(at) = PROTOCOL.find(&format!("\n{heading}\n")) else {
        return "";
    };
    let text = &PROTOCOL[at + heading.len() + 2..];
    let ends = |line: &&str| {
        let depth = line.bytes().take_while(|byte| *byte == b'#').count();
        (1..=level).contains(&depth)
    };
    match text.lines().find(ends) {
        Some(next) => &text[..next.as_ptr() as usize - text.as_ptr() as usize],
        None => text,
    }
}

/// Figures of a section.
fn blocks(heading: &str) -> impl Iterator<Item = &'static str> {
    let blocks = section(heading).split("```text\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap_or_default())
}

/// Lines of the figures of a section.
fn figures(heading: &str) -> impl Iterator<Item = &'static str> {
    blocks(heading).flat_map(str::lines)
}

/// Rows of all tables of a section, each as its cells.
fn rows(heading: &str) -> impl Iterator<Item = Vec<&'static str>> {
    let mut text = true;
    let lines = section(heading).lines().filter(move |line| {
        text ^= line.starts_with("```");
        text && line.starts_with('|')
    });
    lines.map(cells)
}

fn cells(line: &str) -> Vec<&str> {
    let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
    inner.split('|').map(str::trim).collect()
}

/// Returns the datagrams.
pub fn datagrams() -> Vec<Item> {
    let mut name = String::new();
    let mut items = Vec::new();
    for line in figures("## Datagrams") {
        if let Some(mut item) = drawn(line).pop() {
            item.name.clone_from(&name);
            items.push(item);
        } else if let Some((first, _)) = line.trim().split_once([',', ' ']) {
            first.clone_into(&mut name);
        }
    }
    items
}

/// Returns the frames; the fields of REPORT are in [`report`].
pub fn frames() -> Vec<Item> {
    drawn_in("## Packets")
}

/// Returns the parts.
pub fn parts() -> Vec<Item> {
    drawn_in("## Segments")
}

fn drawn_in(heading: &str) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    for line in figures(heading) {
        for mut item in drawn(line) {
            // Empty cells repeat those above.
            if item
                .fields
                .first()
                .is_some_and(|field| field.name.is_empty())
                && let Some(above) = items.last()
            {
                item.fields.clone_from(&above.fields);
            }
            items.push(item);
        }
    }
    items
}

/// Returns the items that a line draws, one or two beside each other.
fn drawn(line: &str) -> Vec<Item> {
    let starts: Vec<_> = line.match_indices("| 0x").map(|(at, _)| at).collect();
    let ends = starts.iter().skip(1).copied().chain([line.len()]);
    let pieces = starts
        .iter()
        .zip(ends)
        .map(|(start, end)| &line[*start..end]);
    pieces.filter_map(item).collect()
}

fn item(piece: &str) -> Option<Item> {
    let (row, tail) = piece.rsplit_once('|')?;
    let mut row = row.split('|').skip(1).map(str::trim);
    let types = types(row.next().unwrap_or_default())?;
    let name = tail.trim().rsplit("  ").next().unwrap_or_default().trim();
    let mut fields: Vec<Field> = Vec::new();
    for cell in row {
        let after_length = fields.last().map(|field| &field.content) == Some(&Content::Length);
        fields.push(field(cell, name, after_length));
    }
    Some(Item {
        types,
        name: name.to_owned(),
        fields,
    })
}

fn field(cell: &str, name: &str, after_length: bool) -> Field {
    let most = [cell, name].into_iter().find_map(|text| {
        let (_, most) = text.split_once("at most ")?;
        most.split(' ').next()?.parse().ok()
    });
    let bits = cell
        .split_once(": ")
        .and_then(|(_, bits)| bits.parse().ok());
    let content = match bits {
        Some(bits) => Content::Fixed(bits),
        None if cell == "length" => Content::Length,
        None if after_length => Content::Bytes(most.unwrap_or(1 << 14)),
        None if cell.contains("to the end") || cell.contains("header") => Content::Rest,
        None => Content::Number,
    };
    let end = cell.find([':', ',']).unwrap_or(cell.len());
    Field {
        name: cell[..end].to_owned(),
        content,
    }
}

/// Parses `0x20`, `0x20 - 0x3f`, `0x20 .. 0x3f` and `0x20 to 0x3f`.
fn types(text: &str) -> Option<(u8, u8)> {
    let mut all = text.split([' ', '-']).filter_map(hex);
    let first = all.next()?;
    Some((first, all.next_back().unwrap_or(first)))
}

fn hex(text: &str) -> Option<u8> {
    let digits = text.trim_matches([',', ';', '`']).strip_prefix("0x")?;
    u8::from_str_radix(digits, 16).ok()
}

/// Returns the messages of packet mode. A field has bits, or is the rest.
pub fn messages() -> Vec<Item> {
    let lines = MESSAGES.lines().filter_map(|line| line.strip_prefix("//!"));
    lines.filter_map(|line| message(line.trim())).collect()
}

/// Parses `0x02 | id:16 | bytes       PIECE       of a message ...`.
fn message(line: &str) -> Option<Item> {
    let is_name =
        |word: &&str| word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase());
    let types = types(&line[..line.find(" |").unwrap_or(line.len())])?;
    let name = line.split_whitespace().find(is_name)?;
    let field = |cell: &str| {
        let cell = cell.split_whitespace().next().unwrap_or_default();
        let (name, bits) = cell.split_once(':').unwrap_or((cell, ""));
        Field {
            name: name.to_owned(),
            content: bits.parse().map_or(Content::Rest, Content::Fixed),
        }
    };
    let mut fields: Vec<Field> = line.split('|').skip(1).map(field).collect();
    if fields.is_empty() {
        // Drawn elsewhere.
        fields.push(field("message"));
    }
    Some(Item {
        types,
        name: name.to_owned(),
        fields,
    })
}

/// Returns the numbers of a table of codes, such as `CLOSE`.
pub fn codes(of: &str) -> Vec<u8> {
    let heading = format!("{of} code");
    let all = rows("## Packets").chain(rows("## Segments"));
    let rows = all.skip_while(|row| row[0] != heading).skip(2);
    let first = |row: Vec<&str>| row[0].split(' ').next()?.parse().ok();
    rows.map_while(first).collect()
}

/// Returns the names of the terms and their offsets in bytes; behind the last one, their length.
pub fn terms() -> (Vec<String>, Vec<usize>) {
    let (mut names, mut offsets) = (Vec::new(), Vec::new());
    for line in figures("### Terms") {
        let numbers: Option<Vec<usize>> = line.split_whitespace().map(|n| n.parse().ok()).collect();
        if line.contains('|') {
            names.extend(cells(line).into_iter().map(str::to_owned));
        } else if let Some(numbers) = numbers {
            offsets.extend(numbers);
        }
    }
    // A figure of several lines repeats an offset where it is broken.
    offsets.dedup();
    (names, offsets)
}

/// Returns the fields of a report in their order.
pub fn report() -> Vec<ReportField> {
    let is_drawn = |block: &&str| block.trim_start().starts_with("REPORT ");
    let drawn = blocks("## Reports").find(is_drawn).unwrap_or_default();
    let (mut fields, mut list) = (Vec::new(), None);
    for word in drawn.split_whitespace().skip(3) {
        let word = match word.split_once("*(") {
            Some((number, word)) => {
                list = Some(number.to_owned());
                word
            }
            None => word,
        };
        let end = word.find(':').unwrap_or(word.len());
        let name = word[..end].trim_matches(['[', ']', '(', ')']);
        fields.push(ReportField {
            name: name.to_owned(),
            flag: flag(name),
            list: list.clone(),
        });
        if word.ends_with(')') {
            list = None;
        }
    }
    fields
}

/// Returns the flag of a field of a report, by the table of the fields.
fn flag(name: &str) -> u8 {
    let find = |row: Vec<&str>| {
        let at = row[0].split(", ").position(|field| field == name)?;
        let flags: Vec<u8> = row.get(1)?.split([' ', ',', ';']).filter_map(hex).collect();
        flags.get(at).or(flags.last()).copied()
    };
    rows("## Reports").find_map(find).unwrap_or(0)
}

/// Returns the fields of the stream headers.
pub fn header_fields() -> Vec<String> {
    let drawn = figures("## Stream header").filter_map(|line| line.rsplit_once('|'));
    let is_name = |cell: &str| cell.starts_with(char::is_alphabetic);
    // The rows below those of names give values and lengths.
    let rows = drawn.map(|(row, _)| cells(row));
    let rows = rows.filter(|row| row.first().is_some_and(|cell| is_name(cell)));
    let names = rows.flatten().filter(|cell| is_name(cell)).map(|cell| {
        let end = cell.find(':').unwrap_or(cell.len());
        cell[..end].to_owned()
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.dedup();
    names
}
