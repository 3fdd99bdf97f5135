//! Pictures of measurements as SVG and, with the feature `png`, as PNG, without a browser or system fonts.
//!
//! A chart ([`HeatMap`], [`LineChart`], [`Stack`], [`ShareMap`]) is plain data that draws a [`Picture`]. The SVG
//! follows the page's light or dark theme and has a text description. The PNG is the same SVG on white, drawn with
//! this crate's DejaVu fonts. Equal data gives equal bytes.

mod axis;
mod canvas;
mod heat_map;
mod line_chart;
#[cfg(any(test, feature = "png"))]
mod raster;
mod share_map;
mod stack;
mod style;

use std::path::{Path, PathBuf};

pub use heat_map::{HeatCell, HeatMap};
pub use line_chart::{LineChart, Scale, Series};
pub use share_map::ShareMap;
pub use stack::{Bar, Stack};
pub(crate) use style::STYLE;
#[cfg(test)]
pub(crate) use style::shade;

use crate::EvalError;
use crate::escape::escaped;
#[cfg(feature = "png")]
use crate::files::PNG;
use crate::files::{SVG, write_file};

/// A drawn picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    width: u32,
    height: u32,
    body: String,
    alt: String,
}

impl Picture {
    /// Width and height in CSS pixels; a PNG has twice as many each way.
    pub fn size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    /// Description of the picture in words.
    pub fn alt(&self) -> &str {
        &self.alt
    }

    /// A standalone SVG file.
    pub fn to_svg(&self) -> String {
        self.element(
            " xmlns=\"http://www.w3.org/2000/svg\"",
            &format!("<style>{}</style>\n", *STYLE),
        )
    }

    /// An element for a page with the style sheet.
    pub(crate) fn inline_svg(&self) -> String {
        self.element("", "")
    }

    fn element(&self, namespace: &str, style: &str) -> String {
        let (width, height, alt) = (self.width, self.height, escaped(&self.alt));
        format!(
            "<svg{namespace} class=\"picture\" role=\"img\" aria-label=\"{alt}\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\">\n{style}<rect class=\"paper\" width=\"{width}\" height=\"{height}\" rx=\"6\"/>\n{}</svg>\n",
            self.body
        )
    }

    /// The picture on white, with two pixels for each CSS pixel.
    ///
    /// # Errors
    /// [`EvalError::Picture`] if the picture is too large.
    #[cfg(any(test, feature = "png"))]
    pub fn to_png(&self) -> Result<Vec<u8>, EvalError> {
        raster::png(&self.to_svg())
    }

    /// Writes `PATH.svg` and, with the feature `png`, `PATH.png`, each atomically. Returns the paths.
    ///
    /// # Errors
    /// [`EvalError::Output`] names the file.
    pub fn write(&self, path: &Path) -> Result<Vec<PathBuf>, EvalError> {
        let file = |extension: &str| {
            let mut name = path.as_os_str().to_owned();
            name.push(extension);
            PathBuf::from(name)
        };
        let svg = file(".svg");
        write_file(&svg, SVG, self.to_svg().as_bytes())?;
        #[cfg(feature = "png")]
        {
            let png = file(".png");
            write_file(&png, PNG, &self.to_png()?)?;
            Ok(vec![svg, png])
        }
        #[cfg(not(feature = "png"))]
        Ok(vec![svg])
    }
}

#[cfg(test)]
mod pixels;
#[cfg(test)]
mod tests;
