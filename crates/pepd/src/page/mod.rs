//! The page: files that are a part of the program. They load nothing from elsewhere, and what they show is set as text.
//!
//! - `index.html`, `style.css`, `icon.svg`, the page as it looks
//! - `app.js`, what it asks for and shows: `/v1/stream`, `/v1/history`, `/v1/flows`
//! - `tables.js`, `chart.js`, `format.js`, tables, lines and numbers

use axum::{Router, http::header::CONTENT_TYPE, routing::get};

/// A file, and where it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct File {
    /// The path of a request.
    pub(crate) path: &'static str,
    kind: &'static str,
    text: &'static str,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// All of them.
pub(crate) const FILES: [File; 7] = [
    File {
        path: "/",
        kind: "text/html; charset=utf-8",
        text: include_str!("index.html"),
    },
    File {
        path: "/style.css",
        kind: "text/css; charset=utf-8",
        text: include_str!("style.css"),
    },
    File {
        path: "/icon.svg",
        kind: "image/svg+xml",
        text: include_str!("icon.svg"),
    },
    File {
        path: "/app.js",
        kind: SCRIPT,
        text: include_str!("app.js"),
    },
    File {
        path: "/chart.js",
        kind: SCRIPT,
        text: include_str!("chart.js"),
    },
    File {
        path: "/format.js",
        kind: SCRIPT,
        text: include_str!("format.js"),
    },
    File {
        path: "/tables.js",
        kind: SCRIPT,
        text: include_str!("tables.js"),
    },
];

/// Answers with them.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.into_iter().fold(Router::new(), |router, file| {
        let answer = move || async move { ([(CONTENT_TYPE, file.kind)], file.text) };
        router.route(file.path, get(answer))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found<'a>(text: &'a str, begin: &'a str, end: char) -> impl Iterator<Item = &'a str> {
        let parts = text.split(begin).skip(1);
        parts.filter_map(move |part| part.split(end).next())
    }

    #[test]
    fn whatever_a_file_loads_is_one_of_them() {
        let mut loaded = 0;
        for file in FILES {
            let attributes = ["href=\"", "src=\""].map(|begin| found(file.text, begin, '"'));
            for path in attributes.into_iter().flatten() {
                assert!(FILES.iter().any(|file| file.path == path), "{path}");
                loaded += 1;
            }
            for path in found(file.text, " from \".", '"') {
                assert!(FILES.iter().any(|file| file.path == path), "{path}");
                loaded += 1;
            }
            for address in found(file.text, "http", '"') {
                assert_eq!(
                    address, "://www.w3.org/2000/svg",
                    "a name, which is not loaded"
                );
            }
            assert!(!file.text.contains("url("), "{}", file.path);
        }
        assert_eq!(loaded, 3 + 5);
    }

    #[test]
    fn nothing_that_is_told_becomes_a_part_of_the_page() {
        for file in FILES {
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "Function(",
                " style=",
                " onclick=",
            ] {
                assert!(!file.text.contains(word), "{word} in {}", file.path);
            }
        }
    }
}
