//! Tests of drawn pictures: legible texts and correct pixels.

use resvg::tiny_skia::Pixmap;
use resvg::usvg::{Group, Node};

use super::raster;
use super::tests::all;

/// The texts of a picture with their boxes: left, top, right, bottom.
fn texts(group: &Group, found: &mut Vec<(String, [f32; 4])>) {
    for node in group.children() {
        match node {
            Node::Group(group) => texts(group, found),
            Node::Text(text) => {
                let letters = text.chunks().iter().map(|chunk| chunk.text().to_owned()).collect();
                let area = text.abs_bounding_box();
                found.push((letters, [area.left(), area.top(), area.right(), area.bottom()]));
            }
            _ => {}
        }
    }
}

#[test]
fn every_text_lies_on_the_canvas_and_none_lies_on_another() {
    for picture in all() {
        let tree = raster::tree(&picture.to_svg()).unwrap();
        let mut found = Vec::new();
        texts(tree.root(), &mut found);
        assert!(found.len() >= 5);
        let (width, height) = picture.size();
        for (text, [left, top, right, bottom]) in &found {
            let inside = *left >= 0.0 && *top >= 0.0 && *right <= width as f32 && *bottom <= height as f32;
            assert!(
                inside,
                "{text:?} at {left} {top} {right} {bottom} in {width} × {height}: {}",
                picture.alt()
            );
        }
        for (place, (text, a)) in found.iter().enumerate() {
            for (other, b) in &found[..place] {
                let apart = a[2] <= b[0] || b[2] <= a[0] || a[3] <= b[1] || b[3] <= a[1];
                assert!(apart, "{text:?} lies on {other:?}: {}", picture.alt());
            }
        }
    }
}

#[test]
fn the_same_data_gives_the_same_pixels_of_twice_the_size() {
    for (picture, again) in all().into_iter().zip(all()).skip(1).step_by(3) {
        let png = picture.to_png().unwrap();
        assert_eq!(png, again.to_png().unwrap());
        let pixels = Pixmap::decode_png(&png).unwrap();
        let (width, height) = picture.size();
        assert_eq!((pixels.width(), pixels.height()), (2 * width, 2 * height));
        // The picture must have a white background with some drawing and text.
        let corner = pixels.pixel(width, 4).unwrap();
        assert_eq!((corner.red(), corner.alpha()), (255, 255));
        assert!(pixels.pixels().iter().filter(|pixel| pixel.red() < 80).count() > 200);
    }
}
