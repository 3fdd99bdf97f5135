//! Colours and type of every picture, for light and dark pages.
//!
//! Shades differ in lightness alone, and series differ in colour, dash and marker, so both are readable without
//! colour vision. The eight series colours are by Okabe and Ito, <https://jfly.uni-koeln.de/color/>, lightened for
//! dark pages.

use std::fmt::Write as _;
use std::sync::LazyLock;

/// Steps of a shaded scale.
pub(crate) const SHADES: usize = 16;

/// Series with distinct styles; further series repeat them.
pub(crate) const SERIES: usize = 8;

/// Dashes of the series, in the order of their colours.
pub(crate) const DASHES: [&str; SERIES] = ["", "7 4", "2 3", "9 3 2 3", "", "7 4", "2 3", "9 3 2 3"];

type Colour = [u8; 3];

/// Shades from 0 to 1, for a light page and a dark page.
const RAMP_LIGHT: [Colour; 5] = [
    [0xf1, 0xed, 0xe4],
    [0xbc, 0xd3, 0xe3],
    [0x5b, 0x9b, 0xc8],
    [0x1f, 0x63, 0x9f],
    [0x08, 0x30, 0x5f],
];
const RAMP_DARK: [Colour; 5] = [
    [0x24, 0x2b, 0x35],
    [0x1f, 0x4a, 0x73],
    [0x2f, 0x7f, 0xb8],
    [0x7c, 0xc0, 0xe8],
    [0xec, 0xf7, 0xff],
];

/// The colours of a page.
struct Theme {
    paper: &'static str,
    ink: &'static str,
    quiet: &'static str,
    grid: &'static str,
    chosen: &'static str,
    ramp: [Colour; 5],
    series: [&'static str; SERIES],
    is_dark: bool,
}

const LIGHT: Theme = Theme {
    paper: "#ffffff",
    ink: "#22262b",
    quiet: "#5a626c",
    grid: "#dfe3e8",
    chosen: "#c24e00",
    ramp: RAMP_LIGHT,
    series: [
        "#0072b2", "#d55e00", "#007a5a", "#a8447f", "#2b2f36", "#b07700", "#3b9bd6", "#6f6400",
    ],
    is_dark: false,
};

const DARK: Theme = Theme {
    paper: "#14181d",
    ink: "#e8ebef",
    quiet: "#a6afba",
    grid: "#333b45",
    chosen: "#ff9d5c",
    ramp: RAMP_DARK,
    series: [
        "#4fa8e0", "#ff8a4c", "#35c9a0", "#e79bc6", "#e3e6ea", "#ffc04d", "#9bd8ff", "#e8dd5a",
    ],
    is_dark: true,
};

/// The style sheet of every picture; its rules apply only inside elements of class `picture`.
///
/// The layout uses the widths of DejaVu Sans, which is wider than its likely substitutes.
pub(crate) static STYLE: LazyLock<String> = LazyLock::new(|| {
    let mut css = String::from(
        ".picture text{font-family:'DejaVu Sans',Verdana,'Segoe UI',sans-serif;font-size:12px}\
         .picture .title{font-size:16px;font-weight:bold}.picture .strong{font-weight:bold}\
         .picture .middle{text-anchor:middle}.picture .end{text-anchor:end}\
         .picture .curve{fill:none;stroke-width:2.2;stroke-linejoin:round}\
         .picture .grid{fill:none;stroke-width:1}.picture .axis{fill:none;stroke-width:1.2}\
         .picture .chosen{fill-opacity:.12}.picture .border{fill:none;stroke-width:1.2}\n",
    );
    css += &LIGHT.css();
    css += "@media (prefers-color-scheme:dark){\n";
    css += &DARK.css();
    css += "}\n";
    css
});

impl Theme {
    fn css(&self) -> String {
        let Self {
            paper,
            ink,
            quiet,
            grid,
            chosen,
            ..
        } = self;
        let mut css = format!(
            ".picture .paper{{fill:{paper}}}.picture text{{fill:{ink}}}.picture .quiet{{fill:{quiet}}}\
             .picture .grid{{stroke:{grid}}}.picture .axis{{stroke:{quiet}}}\
             .picture .chosen{{fill:{chosen}}}.picture .border{{stroke:{chosen}}}\n"
        );
        for shade in 0..SHADES {
            let [red, green, blue] = mixed(&self.ramp, shade);
            // Full contrast with the shade below it.
            let on = if (shade >= SHADES / 2) == self.is_dark {
                "#0b0e12"
            } else {
                "#ffffff"
            };
            let _ = write!(
                css,
                ".picture .h{shade}{{fill:#{red:02x}{green:02x}{blue:02x}}}.picture .on{shade}{{fill:{on}}}"
            );
        }
        for (number, colour) in self.series.iter().enumerate() {
            let _ = write!(
                css,
                ".picture .s{number}{{stroke:{colour}}}.picture .f{number}{{fill:{colour}}}"
            );
        }
        css.push('\n');
        css
    }
}

fn mixed(ramp: &[Colour; 5], shade: usize) -> Colour {
    let place = shade as f64 / (SHADES - 1) as f64 * (ramp.len() - 1) as f64;
    let below = (place as usize).min(ramp.len() - 2);
    let share = place - below as f64;
    std::array::from_fn(|channel| {
        let (from, to) = (f64::from(ramp[below][channel]), f64::from(ramp[below + 1][channel]));
        (from + (to - from) * share).round() as u8
    })
}

/// The shade of a share from 0 to 1.
pub(crate) fn shade(share: f64) -> usize {
    ((share.clamp(0.0, 1.0) * SHADES as f64) as usize).min(SHADES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lightness([red, green, blue]: Colour) -> f64 {
        0.2126 * f64::from(red) + 0.7152 * f64::from(green) + 0.0722 * f64::from(blue)
    }

    #[test]
    fn shades_are_told_apart_by_lightness_alone() {
        for shade in 1..SHADES {
            let steps = |ramp| lightness(mixed(ramp, shade)) - lightness(mixed(ramp, shade - 1));
            assert!(steps(&RAMP_LIGHT) < -4.0 && steps(&RAMP_DARK) > 4.0, "{shade}");
        }
    }

    #[test]
    fn shares_outside_the_scale_take_its_ends() {
        assert_eq!([shade(-1.0), shade(0.0), shade(1.0), shade(7.0)], [0, 0, 15, 15]);
    }
}
