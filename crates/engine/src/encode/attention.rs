//! Attention over freshly projected keys and values of a layer.

use std::ops::Range;

use riffle_attention::{
    AttendOptions, Partial, QueryTile, RowJob, RowPage, RowView, Rows, Selection, attend_rows_batch,
};
use riffle_model::{Batch, Decoder, Projected};

use crate::EngineError;

/// Rows of query heads in one tile. So many rows share the cost of laying out a block of keys.
const TILE_HEAD_ROWS: usize = 128;

/// The queries of a tile, and the target of its result.
struct Place {
    /// Rows of the batch.
    rows: Range<usize>,
    kv_head: usize,
    /// Position of the first row in the text.
    position: usize,
    /// Rows of the text.
    text: Range<usize>,
}

/// Computes attention for `rows` of a batch in a layer with projected rows. All texts of the batch begin at position 0.
/// Each row reads its own text: up to the row, or all of it if the model reads in both directions.
pub(super) fn attend_rows_of(
    model: &Decoder,
    batch: &Batch,
    layer: usize,
    rows: Range<usize>,
    projected: Projected<'_>,
) -> Result<(), EngineError> {
    let config = &model.config;
    let shape = config.attention_of(layer);
    let group = shape.group();
    let (query_width, keys_width, values_width) = (shape.query_width(), shape.keys_width(), shape.values_width());
    let places = places(batch, rows, shape.kv_heads, (TILE_HEAD_ROWS / group).max(1));
    let window = config.windows.get(layer).copied().flatten();
    let selections: Vec<Selection> = places
        .iter()
        .map(|place| match window {
            Some(window) => Selection::none().with_row_window(window),
            None => Selection::full(place.text.len()),
        })
        .collect();
    let pages: Vec<[RowPage<'_>; 1]> = places
        .iter()
        .map(|place| {
            let (first, head) = (place.text.start, place.kv_head);
            [RowPage {
                start: 0,
                tokens: place.text.len(),
                keys: Rows::F32(&projected.keys[first * keys_width + head * shape.key_width..]),
                values: Rows::F32(&projected.values[first * values_width + head * shape.value_width..]),
                stride: keys_width,
                value_stride: values_width,
            }]
        })
        .collect();
    let jobs: Vec<RowJob<'_>> = places
        .iter()
        .zip(&pages)
        .zip(&selections)
        .map(|((place, pages), selection)| RowJob {
            queries: QueryTile {
                data: &projected.queries[place.rows.start * query_width + place.kv_head * group * shape.key_width..],
                rows: place.rows.len(),
                row_stride: query_width,
                group,
                head_dim: shape.key_width,
                start: place.position,
            },
            kv: RowView {
                head_dim: shape.key_width,
                pages,
            },
            selection,
        })
        .collect();
    let options = AttendOptions::new(config.attention_scale)
        .with_soft_cap(config.soft_cap)
        .with_causal(!config.is_bidirectional);
    let partial = |place: &Place| Partial::new(place.rows.len(), group, shape.value_width);
    let mut partials: Vec<Partial> = places.iter().map(partial).collect();
    attend_rows_batch(&jobs, &options, &mut partials)?;
    let attended_width = shape.attended_width();
    for (place, partial) in places.iter().zip(&partials) {
        let first = place.rows.start * attended_width + place.kv_head * group * shape.value_width;
        partial.finish_into(&mut projected.attended[first..], attended_width, None)?;
    }
    Ok(())
}

/// Tiles of up to `most` rows of each text in `rows`, for each KV head.
fn places(batch: &Batch, rows: Range<usize>, kv_heads: usize, most: usize) -> Vec<Place> {
    let mut places = Vec::new();
    for part in batch.parts(rows) {
        let text = &batch.segments()[part.segment].rows;
        for first in part.rows.clone().step_by(most) {
            let rows = first..(first + most).min(part.rows.end);
            places.extend((0..kv_heads).map(|kv_head| Place {
                position: rows.start - text.start,
                rows: rows.clone(),
                kv_head,
                text: text.clone(),
            }));
        }
    }
    places
}
