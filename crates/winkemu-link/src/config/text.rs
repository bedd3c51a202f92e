//! What the texts of all values share.

use std::str::FromStr;

/// Why a value of a link option was refused; says what is accepted.
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

/// Serialises values as their text.
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

/// Values of `name=value,...` lists, in any order; a bare value goes to the first name left.
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

/// A value that is one of a few words.
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
