//! Keys whose names have changed. The release that changes a name still accepts the former one.

use toml::de::DeTable;

/// Renamed keys: section, former name and name.
const RENAMED: [(&str, &str, &str); 2] = [
    ("custody", "folder", "directory"),
    ("link", "elsewhere", "other_routes"),
];

/// The former name of the key `name` of `section`.
pub(super) fn former(section: &str, name: &str) -> Option<&'static str> {
    let renamed = RENAMED
        .iter()
        .find(|(of, _, new)| *of == section && *new == name);
    renamed.map(|(_, former, _)| *former)
}

/// The present name of the key that was called `former` in `section`.
pub(super) fn present(section: &str, former: &str) -> Option<&'static str> {
    let renamed = RENAMED
        .iter()
        .find(|(of, old, _)| *of == section && *old == former);
    renamed.map(|(_, _, name)| *name)
}

/// Reason for which a configuration cannot be rewritten with present names.
#[derive(Debug, thiserror::Error)]
pub enum RenameError {
    /// The text is not TOML.
    #[error(transparent)]
    Syntax(#[from] toml::de::Error),
    /// A key stands under both names.
    #[error("{0}.{1} is the former name of `{2}`, which is set too: remove one of them")]
    Both(&'static str, &'static str, &'static str),
}

/// Rewrites a configuration with the present names of renamed keys. Everything else, comments
/// included, stays as it is.
///
/// # Errors
/// When the text is not TOML, or sets a key under both names.
pub fn with_present_names(text: &str) -> Result<String, RenameError> {
    let document = DeTable::parse(text)?;
    let mut changes = Vec::new();
    for (path, former, name) in RENAMED {
        let section = document.get_ref().get(path);
        let section = section.and_then(|section| section.get_ref().as_table());
        let Some((section, (key, _))) =
            section.and_then(|section| Some((section, section.get_key_value(former)?)))
        else {
            continue;
        };
        if section.contains_key(name) {
            return Err(RenameError::Both(path, former, name));
        }
        changes.push((key.span(), name));
    }
    changes.sort_by_key(|(span, _)| span.start);
    let mut renamed = text.to_owned();
    for (span, name) in changes.into_iter().rev() {
        renamed.replace_range(span, name);
    }
    Ok(renamed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn former_names_are_replaced_and_nothing_else() {
        // prose: ok: a former key
        let text = "# folder\nlink.elsewhere = 'split' # elsewhere\n\
                    [custody]\n\"folder\" = \"folder\"\n[limits]\nfolder = 1\n";
        // prose: ok: a former key
        let renamed = "# folder\nlink.other_routes = 'split' # elsewhere\n\
                       [custody]\ndirectory = \"folder\"\n[limits]\nfolder = 1\n";
        assert_eq!(with_present_names(text).unwrap(), renamed);
        assert_eq!(with_present_names(renamed).unwrap(), renamed);
        assert!(with_present_names("= 1").is_err());
        let both = with_present_names("[custody]\nfolder = 1\ndirectory = 2\n");
        assert!(matches!(both, Err(RenameError::Both("custody", ..))));
    }
}
