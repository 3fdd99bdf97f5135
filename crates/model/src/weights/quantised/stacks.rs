//! Quantised experts stacked in one tensor.

use super::binding::{check_shape, check_type, wrong_shape};
use super::e2m1::E2m1;
use super::float8::Float8;
use super::recipe::{Conversion, Parts, Recipe};
use crate::ModelError;
use crate::weights::Checkpoint;

/// Replaces the codes, `X_blocks`, and scales, `X_scales`, of the experts of all layers: the layout of gpt-oss,
/// `[experts, rows, groups, 16]` and `[experts, rows, groups]`. The experts are stacked in one matrix. Returns the
/// number of matrices.
pub(super) fn bind_e2m1_stacks(names: &[String], checkpoint: &mut Checkpoint) -> Result<usize, ModelError> {
    const GROUP_BYTES: usize = 16;
    let mut count = 0;
    for name in names {
        let Some(target) = name.strip_suffix("_blocks") else {
            continue;
        };
        let scale_name = format!("{target}_scales");
        let (Some(codes), Some(scales)) = (checkpoint.part(name), checkpoint.part(&scale_name)) else {
            continue;
        };
        let (info, scale_info) = (codes.stored.info.clone(), &scales.stored.info);
        check_type(&info, &["U8"], "U8")?;
        check_type(scale_info, &["U8", "F8_E8M0"], "U8 or F8_E8M0")?;
        let [experts, rows, groups, bytes] = info.shape[..] else {
            return Err(wrong_shape(&info, &[1, 1, 1, GROUP_BYTES]));
        };
        check_shape(scale_info, &[&[experts, rows, groups]])?;
        let sizes = experts.checked_mul(rows).zip(groups.checked_mul(2 * GROUP_BYTES));
        let Some((rows, columns)) = sizes.filter(|_| bytes == GROUP_BYTES) else {
            return Err(wrong_shape(&info, &[experts, rows, groups, GROUP_BYTES]));
        };
        let recipe = Recipe {
            name: target.to_owned(),
            experts: None,
            rows,
            columns,
            format: E2m1::Mx.format(columns),
            conversion: Conversion::E2m1(E2m1::Mx),
            parts: Parts {
                codes,
                scales,
                zeros: None,
                order: None,
                whole: None,
            },
        };
        checkpoint.bind(target.to_owned(), &[name.clone(), scale_name], recipe)?;
        count += 1;
    }
    Ok(count)
}

/// Replaces the 8-bit floats, `X`, `[experts, rows, columns]`, and block scales, `X_scale_inv`, of the experts of all
/// layers. Returns the number of matrices.
pub(super) fn bind_float8_stacks(
    names: &[String],
    block: [usize; 2],
    checkpoint: &mut Checkpoint,
) -> Result<usize, ModelError> {
    let mut count = 0;
    // Tensors of single matrices have other suffixes.
    for name in names.iter().filter(|name| !name.ends_with(".weight")) {
        let scale_name = format!("{name}_scale_inv");
        let (Some(codes), Some(scales)) = (checkpoint.part(name), checkpoint.part(&scale_name)) else {
            continue;
        };
        let (info, scale_info) = (&codes.stored.info, &scales.stored.info);
        check_type(info, &["F8_E4M3"], "F8_E4M3")?;
        let [experts, rows, columns] = info.shape[..] else {
            return Err(wrong_shape(info, &[1, block[0], block[1]]));
        };
        // A block never holds rows of two experts.
        let Some(all_rows) = experts.checked_mul(rows).filter(|_| rows.is_multiple_of(block[0])) else {
            return Err(wrong_shape(info, &[experts, rows.next_multiple_of(block[0]), columns]));
        };
        check_shape(scale_info, &[&[experts, rows / block[0], columns.div_ceil(block[1])]])?;
        let float8 = Float8 { block };
        let recipe = Recipe {
            name: name.clone(),
            experts: Some(experts),
            rows: all_rows,
            columns,
            format: float8.format(columns),
            conversion: Conversion::Float8(float8),
            parts: Parts {
                codes,
                scales,
                zeros: None,
                order: None,
                whole: None,
            },
        };
        checkpoint.bind(name.clone(), &[name.clone(), scale_name], recipe)?;
        count += 1;
    }
    Ok(count)
}
