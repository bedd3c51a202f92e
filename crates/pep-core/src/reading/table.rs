//! Sections as tables: a row is a field and its key, its range and its default.

/// Declares a struct, one row for each field, and `read_keys`, which takes the keys from a section
/// in the order of the rows.
///
/// - `field: Type = reading, default;` is the key of that name.
/// - `field: Type = value;` is made in some other way.
///
/// Expressions may use the section, what else `read_keys` is handed, and the fields of rows above.
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
                $(#[doc = concat!("\n\n`", stringify!($value), "`, default `", stringify!($default), "`.")])?
                pub $field: $type,
            )*
        }

        impl $name {
            /// Takes its keys. The caller finishes the section.
            pub(crate) fn read_keys($section: &mut $crate::reading::Section<'_> $(, $given: $of)*) -> Self {
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

pub(crate) use {row, section};
