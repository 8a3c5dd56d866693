//! Line charts as SVG: logarithmic axes or even ones, several panels beside each other, one legend.
//!
//! Colours and greys read on white and on black, and the background is left open.

use std::fmt::Write;

/// Pixels.
const PANEL_WIDTH: f64 = 380.0;
const PANEL_HEIGHT: f64 = 280.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 62.0;
const BOTTOM: f64 = 58.0;
const LEGEND_LINE: f64 = 22.0;
const LEGEND_ENTRY: f64 = 128.0;

/// Grey of text and axes, and of the lines behind the data.
const INK: &str = "#7d8590";
const GRID: &str = "#7d859040";
/// Colours that differ in lightness too, for those who do not tell them apart.
const COLOURS: [&str; 8] =
    ["#e8590c", "#868e96", "#adb5bd", "#2f9e44", "#1c7ed6", "#0b7285", "#9c36b5", "#d6336c"];

/// A point; both coordinates are above 0, or at least 0 on even axes.
pub type Point = (f64, f64);

/// A line of a chart.
#[derive(Debug)]
pub struct Series {
    /// The entry of the legend that it belongs to.
    pub entry: usize,
    /// The line is dashed.
    pub dashed: bool,
    /// Its points, in order.
    pub points: Vec<Point>,
}

/// A diagram. Those with the same label on the vertical axis share its scale.
#[derive(Debug)]
pub struct Panel {
    /// The text above it.
    pub title: String,
    /// The label of the vertical axis, with its unit.
    pub y_label: String,
    /// Its lines.
    pub series: Vec<Series>,
}

/// Diagrams over the same horizontal axis.
#[derive(Debug)]
pub struct Chart {
    /// The text above all.
    pub title: String,
    /// The label of the horizontal axis, with its unit.
    pub x_label: String,
    /// The names of lines, by entry.
    pub legend: Vec<String>,
    /// Where the horizontal axis is labelled, and how.
    pub x_ticks: Vec<(f64, String)>,
    /// The diagrams, from left to right.
    pub panels: Vec<Panel>,
}

/// The steps of both axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scale {
    Logarithmic,
    /// From 0, with points too close to each other to be marked.
    Even,
}

/// An axis from `low` to `high` over pixels `from` to `to`.
#[derive(Debug, Clone, Copy)]
struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis that holds all values, to the next 1, 2 or 5 of a power of ten on both sides, or above.
    fn around(scale: Scale, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (low, high) = values.fold((f64::MAX, f64::MIN_POSITIVE), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        let (low, high) = if low > high { (1.0, 10.0) } else { (low, high) };
        let low = steps(low / 10.0, low).last().copied().unwrap_or(low);
        let high = steps(high, high * 10.0).first().copied().unwrap_or(high);
        Self::between(scale, low, high, (from, to))
    }

    fn between(scale: Scale, low: f64, high: f64, (from, to): (f64, f64)) -> Self {
        let low = if scale == Scale::Even { 0.0 } else { low };
        Self { scale, low, high: high.max(low * 2.0), from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Logarithmic => (value / self.low).ln() / (self.high / self.low).ln(),
            Scale::Even => value / self.high,
        };
        self.from + share * (self.to - self.from)
    }

    /// Where it is labelled: at 1, 2 and 5, or only at powers of ten if those would be too many; an even one at fifths.
    fn ticks(&self) -> Vec<f64> {
        const TICKS_MAX: usize = 8;
        if self.scale == Scale::Even {
            return (0..=5).map(|fifth| self.high * f64::from(fifth) / 5.0).collect();
        }
        let all = steps(self.low, self.high);
        if all.len() <= TICKS_MAX {
            return all;
        }
        all.into_iter().filter(|tick| (tick.log10() - tick.log10().round()).abs() < 1e-9).collect()
    }
}

/// The 1, 2 and 5 of every power of ten between two values, ends included.
fn steps(low: f64, high: f64) -> Vec<f64> {
    let first = low.log10().floor() as i32;
    let last = high.log10().ceil() as i32;
    let all = (first..=last).flat_map(|power| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(power)));
    let slack = 1e-9;
    all.filter(|step| *step >= low * (1.0 - slack) && *step <= high * (1.0 + slack)).collect()
}

impl Chart {
    /// True if no line has a point.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.panels.iter().flat_map(|panel| &panel.series).all(|series| series.points.is_empty())
    }

    /// The file's text.
    #[must_use]
    pub fn svg(&self) -> String {
        self.drawn(Scale::Logarithmic)
    }

    /// The file's text, with even axes from 0.
    #[must_use]
    pub fn even_svg(&self) -> String {
        self.drawn(Scale::Even)
    }

    fn drawn(&self, scale: Scale) -> String {
        let panels = self.panels.len().max(1) as f64;
        let width = panels * PANEL_WIDTH;
        let per_line = ((width - LEFT) / LEGEND_ENTRY).floor().max(1.0) as usize;
        let lines = self.legend.len().div_ceil(per_line) as f64;
        let top = TOP + lines * LEGEND_LINE;
        let height = top + PANEL_HEIGHT;
        let mut svg = String::new();
        let _ = writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\" \
             fill=\"{INK}\">"
        );
        let _ = writeln!(svg, "<title>{}</title>", escaped(&self.title));
        text(&mut svg, (LEFT, 26.0), "start", "font-size=\"16\" font-weight=\"bold\"", &self.title);
        for (entry, name) in self.legend.iter().enumerate() {
            let x = LEFT + (entry % per_line) as f64 * LEGEND_ENTRY;
            let y = 48.0 + (entry / per_line) as f64 * LEGEND_LINE;
            let colour = COLOURS[entry % COLOURS.len()];
            let _ = writeln!(
                svg,
                "<path d=\"M{x} {0}h22\" stroke=\"{colour}\" stroke-width=\"3\"/>",
                y - 4.0
            );
            text(&mut svg, (x + 28.0, y), "start", "", name);
        }
        for (index, panel) in self.panels.iter().enumerate() {
            let sharing = self.panels.iter().filter(|other| other.y_label == panel.y_label);
            let points = sharing.flat_map(|panel| &panel.series).flat_map(|series| &series.points);
            let low_pixel = top + PANEL_HEIGHT - BOTTOM;
            let y_axis = Axis::around(scale, points.map(|(_, y)| *y), low_pixel, top);
            self.panel(&mut svg, panel, index as f64 * PANEL_WIDTH, y_axis);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn panel(&self, svg: &mut String, panel: &Panel, offset: f64, y_axis: Axis) {
        let (from, to) = (offset + LEFT, offset + PANEL_WIDTH - RIGHT);
        let ticks = self.x_ticks.iter().map(|(x, _)| *x);
        let (low, high) = ticks.fold((f64::MAX, f64::MIN_POSITIVE), |(low, high), tick| {
            (low.min(tick), high.max(tick))
        });
        let x_axis = Axis::between(y_axis.scale, low, high, (from, to));
        for tick in y_axis.ticks() {
            let y = y_axis.at(tick);
            let _ = writeln!(svg, "<path d=\"M{from:.1} {y:.1}H{to:.1}\" stroke=\"{GRID}\"/>");
            text(svg, (from - 8.0, y + 4.0), "end", "", &short(tick));
        }
        for (tick, label) in &self.x_ticks {
            let x = x_axis.at(*tick);
            let (top, low) = (y_axis.to, y_axis.from);
            let _ = writeln!(svg, "<path d=\"M{x:.1} {top:.1}V{low:.1}\" stroke=\"{GRID}\"/>");
            text(svg, (x, low + 18.0), "middle", "", label);
        }
        let middle = f64::midpoint(from, to);
        text(svg, (middle, y_axis.to - 8.0), "middle", "font-weight=\"bold\"", &panel.title);
        text(svg, (middle, y_axis.from + 40.0), "middle", "", &self.x_label);
        let (x, y) = (offset + 18.0, f64::midpoint(y_axis.from, y_axis.to));
        let turned = format!("transform=\"rotate(-90 {x:.1} {y:.1})\"");
        text(svg, (x, y), "middle", &turned, &panel.y_label);
        for series in panel.series.iter().filter(|series| !series.points.is_empty()) {
            line(svg, series, x_axis, y_axis);
        }
    }
}

fn line(svg: &mut String, series: &Series, x_axis: Axis, y_axis: Axis) {
    let colour = COLOURS[series.entry % COLOURS.len()];
    let dashes = if series.dashed { " stroke-dasharray=\"5 4\"" } else { "" };
    let pixels: Vec<Point> =
        series.points.iter().map(|(x, y)| (x_axis.at(*x), y_axis.at(*y))).collect();
    let path: Vec<String> = pixels.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
    let _ = writeln!(
        svg,
        "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>",
        path.join("L")
    );
    if y_axis.scale == Scale::Even {
        return;
    }
    for (x, y) in pixels {
        let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
    }
}

fn text(svg: &mut String, (x, y): Point, anchor: &str, attributes: &str, content: &str) {
    let content = escaped(content);
    let space = if attributes.is_empty() { "" } else { " " };
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{space}{attributes}>{content}</text>"
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A tick's number: `20k` for 20,000.
fn short(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}M", trimmed(value / 1e6)),
        value if value >= 1e3 => format!("{}k", trimmed(value / 1e3)),
        value => trimmed(value),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_holds_its_values_between_round_numbers() {
        let axis = Axis::around(Scale::Logarithmic, [3.0, 70.0].into_iter(), 0.0, 100.0);
        assert_eq!((axis.low, axis.high), (2.0, 100.0));
        assert!((axis.at(2.0), axis.at(100.0)) == (0.0, 100.0) && axis.at(10.0) < 50.0);
        assert_eq!(axis.ticks(), [2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        let wide = Axis::around(Scale::Logarithmic, [1.0, 1e6].into_iter(), 0.0, 100.0);
        assert_eq!(wide.ticks().len(), 7, "only powers of ten");
        let nothing = Axis::around(Scale::Logarithmic, std::iter::empty(), 0.0, 100.0);
        assert!(nothing.high > nothing.low);
        let one = Axis::around(Scale::Logarithmic, [5.0].into_iter(), 0.0, 100.0);
        assert!(one.at(5.0).is_finite());
    }

    #[test]
    fn an_even_axis_begins_at_nothing() {
        let axis = Axis::around(Scale::Even, [0.3, 3.0].into_iter(), 0.0, 100.0);
        assert_eq!((axis.low, axis.high, axis.at(0.0), axis.at(2.5)), (0.0, 5.0, 0.0, 50.0));
        assert_eq!(axis.ticks(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert!(Axis::around(Scale::Even, [0.0].into_iter(), 0.0, 9.0).at(0.0).is_finite());
    }

    #[test]
    fn ticks_are_short() {
        for (value, text) in [(0.05, "0.05"), (5.0, "5"), (20_000.0, "20k"), (1e6, "1M")] {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn every_series_with_points_is_drawn_and_text_is_escaped() {
        let series = |entry, points| Series { entry, dashed: entry == 1, points };
        let chart = Chart {
            title: "a < b".into(),
            x_label: "x".into(),
            legend: vec!["one".into(), "two".into(), "three".into()],
            x_ticks: vec![(1.0, "1".into()), (10.0, "10".into())],
            panels: vec![Panel {
                title: "p".into(),
                y_label: "y, µs".into(),
                series: vec![
                    series(0, vec![(1.0, 5.0), (10.0, 50.0)]),
                    series(1, vec![(1.0, 7.0)]),
                    series(2, vec![]),
                ],
            }],
        };
        let svg = chart.svg();
        assert_eq!(svg.matches("<circle").count(), 3);
        assert_eq!(svg.matches("fill=\"none\"").count(), 2);
        assert_eq!(svg.matches("stroke-dasharray").count(), 1);
        assert!(svg.contains("a &lt; b") && svg.contains("y, µs") && !svg.contains("NaN"));
    }
}
