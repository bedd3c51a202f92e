//! Parsing and formatting shared by all values.

use std::str::FromStr;

/// Rejected value of a link option, with the accepted form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct ValueError {
    text: String,
    expected: String,
}

impl ValueError {
    pub(crate) fn new(text: &str, expected: impl Into<String>) -> Self {
        Self {
            text: text.to_owned(),
            expected: expected.into(),
        }
    }
}

/// Implements `Serialize` for values through their text form.
macro_rules! serialize_as_text {
    ($($type:ty),*) => {$(
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )*};
}
pub(super) use serialize_as_text;

/// Parses a `name=value,...` list in any order; a bare value takes the first unused name.
pub(super) fn named<'a>(text: &'a str, names: &[&'static str]) -> Option<Vec<Option<&'a str>>> {
    let mut values = vec![None; names.len()];
    for part in text.split(',') {
        let (slot, value) = match part.split_once('=') {
            Some((name, value)) => (names.iter().position(|n| *n == name.trim())?, value),
            None => (values.iter().position(Option::is_none)?, part),
        };
        if values[slot].replace(value.trim()).is_some() {
            return None;
        }
    }
    Some(values)
}

pub(super) fn read<T: FromStr>(text: Option<&str>) -> Option<T> {
    text?.parse().ok()
}

/// Declares an enum whose values are written as words.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl std::str::FromStr for $name {
            type Err = ValueError;

            fn from_str(text: &str) -> Result<Self, ValueError> {
                match text.trim() {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(ValueError::new(text, concat!("one of", $(" \"", $word, "\"",)+))),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $(Self::$variant => $word,)+ })
            }
        }
    };
}
pub(super) use words;
