//! Web page: files that are compiled into the program. They load nothing from other hosts, and show
//! data as text only.
//!
//! - `index.html`, `style.css`, `icon.svg`: layout
//! - `app.js`: requests and display: `/v1/stream`, `/v1/history`, `/v1/flows`
//! - `tables.js`, `chart.js`, `format.js`: tables, charts and numbers

use axum::{Router, http::header::CONTENT_TYPE, routing::get};

/// File of the page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct File {
    /// Path of the request.
    pub(crate) path: &'static str,
    kind: &'static str,
    text: &'static str,
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// All files of the page.
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

/// Returns the routes that serve the files.
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
                    "a namespace, which is not loaded"
                );
            }
            assert!(!file.text.contains("url("), "{}", file.path);
        }
        assert_eq!(loaded, 3 + 5);
    }

    #[test]
    fn data_never_becomes_markup() {
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
