//! Draws an SVG as pixels, with this crate's fonts.

use std::sync::{Arc, LazyLock};

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::Database;
use resvg::usvg::{Options, Tree};

use crate::EvalError;

/// Pixels for each CSS pixel, so that text is sharp on dense screens and in print.
const SCALE: f32 = 2.0;

/// Maximum number of pixels of a picture; they take a quarter of a gigabyte.
const MOST_PIXELS: u64 = 1 << 26;

static FONTS: LazyLock<Arc<Database>> = LazyLock::new(|| {
    let mut fonts = Database::new();
    fonts.load_font_data(dejavu::sans::regular().to_vec());
    fonts.load_font_data(dejavu::sans::bold().to_vec());
    Arc::new(fonts)
});

pub(super) fn png(svg: &str) -> Result<Vec<u8>, EvalError> {
    let tree = tree(svg)?;
    let size = tree.size();
    let (width, height) = ((size.width() * SCALE) as u32, (size.height() * SCALE) as u32);
    let fits = u64::from(width) * u64::from(height) <= MOST_PIXELS;
    let mut pixels = fits
        .then(|| Pixmap::new(width, height))
        .flatten()
        .ok_or_else(|| EvalError::Picture(format!("{width} × {height} pixels are too many for a PNG")))?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels
        .encode_png()
        .map_err(|error| EvalError::Picture(error.to_string()))
}

pub(super) fn tree(svg: &str) -> Result<Tree, EvalError> {
    let options = Options {
        fontdb: Arc::clone(&FONTS),
        font_family: "DejaVu Sans".to_owned(),
        ..Options::default()
    };
    Tree::from_str(svg, &options).map_err(|error| EvalError::Picture(error.to_string()))
}
