//! Serialisation of links in TOML and JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{LinkOptions, OptionError, PathOptions};

/// Serialises as a table of texts.
impl Serialize for PathOptions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.entries())
    }
}

impl Serialize for LinkOptions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map: BTreeMap<&str, serde_json::Value> = BTreeMap::new();
        for (key, value) in self.both.entries() {
            map.insert(key, value.into());
        }
        for (key, path) in [("ab", &self.ab), ("ba", &self.ba)] {
            if let Some(path) = path {
                let entries = path.entries().into_iter();
                let table = entries.map(|(key, value)| (key.to_owned(), value.into()));
                map.insert(key, serde_json::Value::Object(table.collect()));
            }
        }
        map.serialize(serializer)
    }
}

/// Value in a file: text, a bare number or boolean, or a table for one direction.
#[derive(Deserialize)]
#[serde(untagged)]
enum Entry {
    Text(String),
    Flag(bool),
    Integer(i64),
    Number(f64),
    Table(BTreeMap<String, Entry>),
}

impl Entry {
    fn text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text),
            Self::Flag(flag) => Some(flag.to_string()),
            Self::Integer(number) => Some(number.to_string()),
            Self::Number(number) => Some(number.to_string()),
            Self::Table(table) => {
                // A list written as a table: wink = { p = 0.4, i = "100ms" }.
                let pairs = table
                    .into_iter()
                    .map(|(k, v)| Some(format!("{k}={}", v.text()?)));
                Some(pairs.collect::<Option<Vec<_>>>()?.join(","))
            }
        }
    }
}

fn set_entry(options: &mut PathOptions, key: &str, entry: Entry) -> Result<(), OptionError> {
    let text = entry.text();
    let error = || OptionError::NoKey {
        text: key.to_owned(),
    };
    options.set(key, &text.ok_or_else(error)?)
}

fn set_table(table: BTreeMap<String, Entry>) -> Result<PathOptions, OptionError> {
    let mut options = PathOptions::default();
    for (key, entry) in table {
        set_entry(&mut options, &key, entry)?;
    }
    Ok(options)
}

impl<'de> Deserialize<'de> for LinkOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let mut table: BTreeMap<String, Entry> = Deserialize::deserialize(deserializer)?;
        let mut direction = |key: &str| match table.remove(key) {
            Some(Entry::Table(table)) => set_table(table).map(Some).map_err(D::Error::custom),
            Some(_) => Err(D::Error::custom(format!(
                "`{key}` is not a table of link options"
            ))),
            None => Ok(None),
        };
        let (ab, ba) = (direction("ab")?, direction("ba")?);
        let both = set_table(table).map_err(D::Error::custom)?;
        Ok(Self { both, ab, ba })
    }
}
