//! Elements shared by all plots: a page with a title, a legend and panels, and its conversion to
//! PNG.

use std::sync::Arc;

use plotters::{
    coord::{Shift, types::RangedCoordf64},
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use resvg::{tiny_skia, usvg};

/// Palette that remains distinguishable with red-green colour blindness (Okabe and Ito, 2008), and
/// three more colours that are hard to confuse with it.
const PALETTE: [RGBColor; 10] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x70, 0x70, 0x70),
    RGBColor(0x8c, 0x56, 0x4b),
    RGBColor(0x5d, 0x3a, 0x9b),
    RGBColor(0xb5, 0xa7, 0x00),
];
pub(super) const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
pub(super) const GRID: RGBColor = RGBColor(0xe2, 0xe2, 0xe2);
pub(super) const FAINT: RGBColor = RGBColor(0x66, 0x66, 0x66);
/// Background of periods that do not count, and of outages.
const SHADE: RGBColor = RGBColor(0xf2, 0xf2, 0xf2);
const FONT: &str = "DejaVu Sans, Liberation Sans, Arial, sans-serif";

pub(super) const PANEL_WIDTH: u32 = 460;
pub(super) const PANEL_HEIGHT: u32 = 340;
const HEAD_HEIGHT: i32 = 62;
const LEGEND_ROW_HEIGHT: i32 = 24;
const MARGIN: i32 = 18;
/// Scale of PNGs: twice the pixels, for high-resolution screens.
const PNG_SCALE: f32 = 2.0;

/// Failure to draw a plot.
#[derive(Debug, thiserror::Error)]
pub enum FigureError {
    /// The drawing failed.
    #[error("cannot draw a plot: {0}")]
    Draw(String),
    /// No font for the text of a PNG; the SVG is complete.
    #[error(
        "no font for the text of PNG plots: `apt-get install fonts-dejavu-core` (SVG plots need \
         none)"
    )]
    NoFont,
    /// The SVG could not be parsed, or memory is short.
    #[error("cannot turn a plot into a PNG: {0}")]
    Png(String),
}

/// Finished plot.
#[derive(Debug)]
pub struct Figure {
    name: String,
    svg: String,
}

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Page with panels.
pub(super) struct Page<'a> {
    pub name: String,
    pub title: &'a str,
    pub subtitle: String,
    /// Names of the series, in the order of the colours.
    pub legend: Vec<String>,
    /// Names of the reference lines, listed after those of the series.
    pub lines: Vec<String>,
    /// Number of panels, and of panels per row.
    pub panels: usize,
    pub columns: usize,
}

impl Figure {
    /// Name of the plot, without the scenario's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Plot as SVG.
    pub fn svg(&self) -> &str {
        &self.svg
    }

    /// Converts the plot to PNG.
    ///
    /// # Errors
    /// [`FigureError::NoFont`] if no font is installed.
    pub fn to_png(&self) -> Result<Vec<u8>, FigureError> {
        let mut fonts = usvg::fontdb::Database::new();
        fonts.load_system_fonts();
        let family = fonts
            .faces()
            .next()
            .and_then(|face| Some(face.families.first()?.0.clone()));
        let family = family.ok_or(FigureError::NoFont)?;
        if !fonts
            .faces()
            .any(|face| face.families.iter().any(|(name, _)| name == "DejaVu Sans"))
        {
            fonts.set_sans_serif_family(family);
        }
        let options = usvg::Options {
            fontdb: Arc::new(fonts),
            ..usvg::Options::default()
        };
        let failed = |err: &dyn std::fmt::Display| FigureError::Png(err.to_string());
        let tree = usvg::Tree::from_str(&self.svg, &options).map_err(|err| failed(&err))?;
        let size = tree.size().to_int_size();
        let pixels = |length: u32| (length as f32 * PNG_SCALE) as u32;
        let pixmap = tiny_skia::Pixmap::new(pixels(size.width()), pixels(size.height()));
        let mut pixmap = pixmap.ok_or_else(|| failed(&"no memory"))?;
        let scale = tiny_skia::Transform::from_scale(PNG_SCALE, PNG_SCALE);
        resvg::render(&tree, scale, &mut pixmap.as_mut());
        pixmap.encode_png().map_err(|err| failed(&err))
    }
}

impl Page<'_> {
    /// Draws the page; `panel` draws each panel into its area.
    pub fn draw(
        self,
        mut panel: impl FnMut(usize, &Area<'_>) -> Result<(), FigureError>,
    ) -> Result<Figure, FigureError> {
        let columns = self.columns.clamp(1, self.panels.max(1));
        let rows = self.panels.div_ceil(columns);
        let width = (columns as u32 * PANEL_WIDTH).max(620) + 2 * MARGIN as u32;
        let legend = self.legend_rows(width as i32);
        let head = HEAD_HEIGHT + legend.len() as i32 * LEGEND_ROW_HEIGHT;
        let height = head as u32 + rows as u32 * PANEL_HEIGHT + MARGIN as u32;
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
            root.fill(&WHITE).map_err(drawing)?;
            self.draw_head(&root, &legend)?;
            let (_, body) = root.split_vertically(head);
            let body = body.margin(0, MARGIN, MARGIN, MARGIN);
            let areas = body.split_evenly((rows, columns));
            for (index, area) in areas.iter().take(self.panels).enumerate() {
                panel(index, area)?;
            }
            root.present().map_err(drawing)?;
        }
        Ok(Figure {
            name: self.name,
            svg,
        })
    }

    fn draw_head(&self, root: &Area<'_>, legend: &[Vec<(usize, i32)>]) -> Result<(), FigureError> {
        let title = text(21).style(FontStyle::Bold);
        draw_text(
            root,
            self.title,
            &title.color(&INK),
            (MARGIN, 14),
            (HPos::Left, VPos::Top),
        )?;
        let subtitle = text(15).color(&FAINT);
        draw_text(
            root,
            &self.subtitle,
            &subtitle,
            (MARGIN, 40),
            (HPos::Left, VPos::Top),
        )?;
        for (row, entries) in legend.iter().enumerate() {
            let y = HEAD_HEIGHT + 8 + row as i32 * LEGEND_ROW_HEIGHT;
            for (series, x) in entries {
                let name = if let Some(number) = series.checked_sub(self.legend.len()) {
                    let swatch = PathElement::new([(*x, y), (x + 14, y)], line_style(number));
                    root.draw(&swatch).map_err(drawing)?;
                    &self.lines[number]
                } else {
                    let swatch = [(*x, y - 6), (x + 14, y + 6)];
                    let swatch = Rectangle::new(swatch, color(*series).filled());
                    root.draw(&swatch).map_err(drawing)?;
                    &self.legend[*series]
                };
                let anchor = (HPos::Left, VPos::Center);
                let style = text(15).color(&INK);
                draw_text(root, name, &style, (x + 20, y), anchor)?;
            }
        }
        Ok(())
    }

    /// Series with the start of their legend entries, row by row.
    fn legend_rows(&self, width: i32) -> Vec<Vec<(usize, i32)>> {
        let mut rows = vec![Vec::new()];
        let mut x = MARGIN;
        for (series, name) in self.legend.iter().chain(&self.lines).enumerate() {
            let length = 20 + text_width(name, 15) + 26;
            if x + length > width - MARGIN && x > MARGIN {
                rows.push(Vec::new());
                x = MARGIN;
            }
            rows.last_mut()
                .expect("rows are never empty")
                .push((series, x));
            x += length;
        }
        rows
    }
}

/// Chart with linear axes.
pub(super) type Chart<'a, 'b> =
    ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Draws the axes of a chart over time, up to `end` seconds and `top`, and the shaded periods
/// behind its lines.
pub(super) fn over_time<'a, 'b>(
    area: &'a Area<'b>,
    (end, seconds): (f64, &str),
    (top, unit): (f64, &str),
    shaded: &[(f64, f64)],
) -> Result<Chart<'a, 'b>, FigureError> {
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .margin_top(34)
        .set_label_area_size(LabelAreaPosition::Left, 62)
        .set_label_area_size(LabelAreaPosition::Bottom, 46)
        .build_cartesian_2d(0.0..end, 0.0..top)
        .map_err(drawing)?;
    let shade =
        |(from, to): &(f64, f64)| Rectangle::new([(*from, 0.0), (*to, top)], SHADE.filled());
    chart
        .draw_series(shaded.iter().map(shade))
        .map_err(drawing)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(7)
        .y_labels(6)
        .x_label_formatter(&|value| tick(*value))
        .y_label_formatter(&|value| tick(*value))
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(FAINT)
        .label_style(text(14).color(&INK))
        .axis_desc_style(text(14).color(&FAINT))
        .x_desc(seconds)
        .y_desc(unit)
        .draw()
        .map_err(drawing)?;
    Ok(chart)
}

/// Writes a small text into a chart, to the right of `from` seconds at the top.
pub(super) fn note(
    chart: &Chart<'_, '_>,
    area: &Area<'_>,
    (from, top): (f64, f64),
    words: &str,
) -> Result<(), FigureError> {
    let at = place(chart, area, (from, top));
    let style = text(11).color(&FAINT);
    draw_text(
        area,
        words,
        &style,
        (at.0 + 5, at.1 + 4),
        (HPos::Left, VPos::Top),
    )
}

/// Writes the name of a panel above its chart.
pub(super) fn panel_name(
    chart: &Chart<'_, '_>,
    area: &Area<'_>,
    name: &str,
) -> Result<(), FigureError> {
    let at = place(chart, area, (0.0, 0.0));
    let style = text(16).style(FontStyle::Bold).color(&INK);
    draw_text(area, name, &style, (at.0, 10), (HPos::Left, VPos::Top))
}

/// Pixels of a point of a chart within its area.
fn place(chart: &Chart<'_, '_>, area: &Area<'_>, point: (f64, f64)) -> (i32, i32) {
    let (left, up) = area.get_base_pixel();
    let (x, y) = chart.backend_coord(&point);
    (x - left, y - up)
}

/// Formats a tick without trailing zeros.
pub(super) fn tick(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

pub(super) fn color(series: usize) -> RGBColor {
    PALETTE[series % PALETTE.len()]
}

/// Style of a reference line: black, then the colours of series that are rarely used.
pub(super) fn line_style(number: usize) -> ShapeStyle {
    match number {
        0 => INK.stroke_width(2),
        _ => PALETTE[PALETTE.len() - number % PALETTE.len()].stroke_width(2),
    }
}

pub(super) fn text(size: u32) -> FontDesc<'static> {
    FontDesc::new(FontFamily::Name(FONT), f64::from(size), FontStyle::Normal)
}

/// Estimated width of a text: only the viewer of the SVG knows the font.
pub(super) fn text_width(text: &str, size: u32) -> i32 {
    // DejaVu Sans, a wide font, needs 0.6 em per letter; SVG sizes are 1/1.24 of those of plotters.
    (text.chars().count() as f64 * f64::from(size) / 1.24 * 0.6) as i32
}

pub(super) fn draw_text(
    area: &Area<'_>,
    words: &str,
    style: &TextStyle<'_>,
    at: (i32, i32),
    (h, v): (HPos, VPos),
) -> Result<(), FigureError> {
    area.draw_text(words, &style.clone().pos(Pos::new(h, v)), at)
        .map_err(drawing)
}

pub(super) fn drawing(err: impl std::fmt::Display) -> FigureError {
    FigureError::Draw(err.to_string())
}

/// Rounds up to a round number for the end of an axis.
pub(super) fn round_up(value: f64) -> f64 {
    if !(value.is_finite() && value > 0.0) {
        return 1.0;
    }
    let magnitude = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    let found = steps
        .iter()
        .map(|step| step * magnitude)
        .find(|end| *end >= value * 0.9999);
    found.unwrap_or(10.0 * magnitude)
}
