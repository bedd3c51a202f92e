//! View state, and its changes by keys.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Maximum number of queried flows; more would cost pepd too much.
pub(super) const ASKED: usize = 1000;

/// View of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum View {
    /// Link, sites, peers, limits.
    #[default]
    Overview,
    /// Flows.
    Flows,
}

/// Sort order of flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Order {
    /// By bytes, descending.
    #[default]
    Bytes,
    /// By rate, descending.
    Rate,
    /// By age, the oldest first.
    Age,
    /// By round trip, the longest first.
    Rtt,
}

impl Order {
    /// Returns the name shown for the order.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Rate => "rate",
            Self::Age => "age",
            Self::Rtt => "rtt",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Bytes => Self::Rate,
            Self::Rate => Self::Age,
            Self::Age => Self::Rtt,
            Self::Rtt => Self::Bytes,
        }
    }
}

/// Action after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Continue.
    Stay,
    /// Query again at once for other data.
    Ask,
    /// Quit.
    Leave,
}

/// View state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Ui {
    /// Current view.
    pub(super) view: View,
    /// True if the help is shown on top.
    pub(super) help: bool,
    /// Order of flows.
    pub(super) order: Order,
    /// Site whose flows are shown; none for all.
    pub(super) site: Option<String>,
    /// Number of lines of the list above the screen.
    pub(super) scroll: usize,
    /// True if colours are used. No information is conveyed by them alone.
    pub(super) colour: bool,
}

impl Ui {
    /// Handles a key. `room` is the number of visible lines of the list, `most` the maximum scroll
    /// position, `sites` the names of all sites.
    pub(super) fn press(
        &mut self,
        key: KeyEvent,
        room: usize,
        most: usize,
        sites: &[&str],
    ) -> Next {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        self.scroll = self.scroll.min(most);
        match key.code {
            KeyCode::Char('c') if control => return Next::Leave,
            KeyCode::Char('q') => return Next::Leave,
            KeyCode::Char('?' | 'h') => self.help = !self.help,
            KeyCode::Esc => self.help = false,
            KeyCode::Tab | KeyCode::Char('f') => {
                self.view = match self.view {
                    View::Overview => View::Flows,
                    View::Flows => View::Overview,
                };
                self.scroll = 0;
                return Next::Ask;
            }
            KeyCode::Char('s') if self.view == View::Flows => {
                self.order = self.order.next();
                self.scroll = 0;
                return Next::Ask;
            }
            KeyCode::Char('i') if self.view == View::Flows => {
                self.site = following(self.site.as_deref(), sites).map(ToOwned::to_owned);
                self.scroll = 0;
                return Next::Ask;
            }
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.scroll = (self.scroll + 1).min(most),
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(room),
            KeyCode::PageDown => self.scroll = (self.scroll + room).min(most),
            KeyCode::Home => self.scroll = 0,
            KeyCode::End => self.scroll = most,
            _ => {}
        }
        Next::Stay
    }

    /// Returns the path of the query for the shown flows; none in the overview.
    pub(super) fn flows_target(&self) -> Option<String> {
        // Sorts by rate and round trip locally: pepd would have to query the kernel for all.
        let sort = match self.order {
            Order::Age => "age",
            Order::Bytes | Order::Rate | Order::Rtt => "bytes",
        };
        let site = self.site.iter().map(|site| format!("&site={site}"));
        let site: String = site.collect();
        (self.view == View::Flows).then(|| format!("/v1/flows?limit={ASKED}&sort={sort}{site}"))
    }
}

/// Returns the site after this one; none (all sites) after the last one, or if it is gone.
fn following<'a>(site: Option<&str>, sites: &[&'a str]) -> Option<&'a str> {
    let Some(site) = site else {
        return sites.first().copied();
    };
    let place = sites.iter().position(|known| *known == site)?;
    sites.get(place + 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(ui: &mut Ui, code: KeyCode) -> Next {
        ui.press(KeyEvent::from(code), 5, 12, &["mail", "web"])
    }

    #[test]
    fn the_end_is_q_or_control_c_and_nothing_else() {
        let mut ui = Ui::default();
        let control = |letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL);
        assert_eq!(press(&mut ui, KeyCode::Char('q')), Next::Leave);
        assert_eq!(ui.press(control('c'), 5, 12, &[]), Next::Leave);
        for code in [
            KeyCode::Char('c'),
            KeyCode::Esc,
            KeyCode::Enter,
            KeyCode::F(1),
        ] {
            assert_eq!(press(&mut ui, code), Next::Stay);
        }
        assert_eq!(ui, Ui::default());
    }

    #[test]
    fn flows_are_asked_for_only_while_they_are_shown() {
        let mut ui = Ui::default();
        assert_eq!(ui.flows_target(), None);
        assert_eq!(
            press(&mut ui, KeyCode::Char('s')),
            Next::Stay,
            "no flows are shown"
        );
        assert_eq!(press(&mut ui, KeyCode::Tab), Next::Ask);
        assert_eq!(
            ui.flows_target().unwrap(),
            "/v1/flows?limit=1000&sort=bytes"
        );
        let mut names = Vec::new();
        for _ in 0..4 {
            names.push(ui.order.name());
            assert_eq!(press(&mut ui, KeyCode::Char('s')), Next::Ask);
        }
        assert_eq!(names, ["bytes", "rate", "age", "rtt"]);
        let mut sites = Vec::new();
        for _ in 0..3 {
            assert_eq!(press(&mut ui, KeyCode::Char('i')), Next::Ask);
            sites.push(ui.flows_target().unwrap());
        }
        assert!(
            sites[0].ends_with("&site=mail") && sites[1].ends_with("&site=web"),
            "{sites:?}"
        );
        assert!(!sites[2].contains("site="), "{sites:?}");
        assert_eq!(press(&mut ui, KeyCode::Char('f')), Next::Ask);
        assert_eq!(ui.flows_target(), None);
    }

    #[test]
    fn a_list_moves_within_its_bounds() {
        let mut ui = Ui::default();
        for (code, expected) in [
            (KeyCode::Up, 0),
            (KeyCode::Down, 1),
            (KeyCode::PageDown, 6),
            (KeyCode::PageDown, 11),
            (KeyCode::PageDown, 12),
            (KeyCode::Down, 12),
            (KeyCode::PageUp, 7),
            (KeyCode::Home, 0),
            (KeyCode::End, 12),
        ] {
            assert_eq!(press(&mut ui, code), Next::Stay);
            assert_eq!(ui.scroll, expected, "{code:?}");
        }
        // The list has shrunk.
        ui.press(KeyEvent::from(KeyCode::Up), 5, 3, &[]);
        assert_eq!(ui.scroll, 2);
    }
}
