//! Sections as tables, one row per field with key, range and default; enums as tables of value and
//! word.

/// Declares a struct, one row for each field, and `read_keys`, which takes the keys from a section
/// in the order of the rows.
///
/// - `field: Type = reading, default;` is the key of that name.
/// - `field: Type = value;` is computed.
///
/// Expressions may use the section, the other arguments of `read_keys`, and the fields of earlier
/// rows.
macro_rules! section {
    (
        $(#[$meta:meta])*
        pub struct $name:ident($section:ident $(, $given:ident: $of:ty)*) {
            $($(#[$doc:meta])* $field:ident: $type:ty = $value:expr $(, $default:expr)?;)*
        }
    ) => {
        $(#[$meta])*
        pub struct $name {
            $(
                $(#[$doc])*
                $(#[doc = concat!(
                    "\n\n`", stringify!($value), "`, default `", stringify!($default), "`."
                )])?
                pub $field: $type,
            )*
        }

        impl $name {
            /// Takes the keys of the section. The caller finishes the section.
            pub(crate) fn read_keys(
                $section: &mut $crate::reading::Section<'_>
                $(, $given: $of)*
            ) -> Self {
                $(let $field = $crate::reading::row!($section, $field, $value $(, $default)?);)*
                Self { $($field),* }
            }
        }
    };
}

/// The value of a row of a [`section`].
macro_rules! row {
    ($section:ident, $field:ident, $value:expr) => {
        $value
    };
    ($section:ident, $field:ident, $reading:expr, $default:expr) => {
        $section.or(stringify!($field), $reading, $default)
    };
}

/// Declares an enum by the words for its values, which `WORDS` reads.
macro_rules! words {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$doc:meta])* $variant:ident = $word:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            pub(crate) const WORDS: $crate::reading::values::OneOf<Self> =
                $crate::reading::values::OneOf(&[$(($word, Self::$variant)),+]);
        }

        impl std::fmt::Display for $name {
            /// Writes the word used in configurations.
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    $(Self::$variant => $word,)+
                })
            }
        }
    };
}

pub(crate) use {row, section, words};
