//! Finds the tensors of each quantised matrix.

use riffle_linear::WeightFormat;

use super::e2m1::E2m1;
use super::float8::Float8;
use super::integers::{Integers, Packing, Zeros};
use super::method::{MlxGroups, MlxMode, Quantisation, Scheme};
use super::recipe::{Conversion, Part, Parts, Recipe, is_type};
use super::stacks::{bind_e2m1_stacks, bind_float8_stacks};
use crate::weights::{Checkpoint, TensorType};
use crate::{ModelError, TensorInfo};

/// Suffixes of tensor names for the rounding of activations or cached keys and values, which are not used here.
const OF_ACTIVATIONS: [&str; 11] = [
    ".input_scale",
    ".activation_scale",
    ".input_global_scale",
    ".input_zero_point",
    ".output_scale",
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".prob_scale",
    ".kv_scale",
    ".input_amax",
];

const SCALES: [&str; 2] = ["weight_scale_inv", "weight_scale"];

/// Replaces the tensors of each quantised matrix by a matrix of a packed format. Returns the number of matrices.
pub(crate) fn bind(quantisation: &Quantisation, checkpoint: &mut Checkpoint) -> Result<usize, ModelError> {
    let suffixes: &[&str] = match quantisation.scheme {
        Scheme::Labelled { .. } => &["weight_packed", "weight"],
        Scheme::Gptq { .. } | Scheme::Awq => &["qweight"],
        Scheme::Mlx { .. } => &["weight"],
    };
    let names: Vec<String> = checkpoint.names().cloned().collect();
    let mut count = bind_e2m1_stacks(&names, checkpoint)?;
    if let Scheme::Labelled { block, .. } = &quantisation.scheme {
        count += bind_float8_stacks(&names, *block, checkpoint)?;
    }
    for name in names {
        let Some((module, suffix)) = name.rsplit_once('.') else {
            continue;
        };
        if !suffixes.contains(&suffix) {
            continue;
        }
        let Some(codes) = checkpoint.part(&name) else { continue };
        let tensors = Tensors { checkpoint, module };
        let found = match &quantisation.scheme {
            Scheme::Labelled { block, group } => tensors.labelled(codes, *block, *group)?,
            Scheme::Gptq { zero_offset, group } => Some(tensors.gptq(codes, *zero_offset, *group)?),
            Scheme::Awq => Some(tensors.awq(codes)?),
            Scheme::Mlx { all, own } => tensors.mlx(codes, own.get(module).copied().unwrap_or(*all))?,
        };
        if let Some((recipe, used)) = found {
            let used: Vec<String> = used
                .into_iter()
                .chain([suffix])
                .map(|part| format!("{module}.{part}"))
                .collect();
            let target = format!("{module}.weight");
            checkpoint.bind(target, &used, recipe)?;
            checkpoint.forgive_zeros(&format!("{module}.bias"))?;
            count += 1;
        }
    }
    if count > 0 {
        checkpoint.forget(|name| OF_ACTIVATIONS.iter().any(|end| name.ends_with(end)));
    }
    Ok(count)
}

/// A matrix, and the name suffixes of its tensors in addition to its codes.
type Found = (Recipe, Vec<&'static str>);

/// The tensors of a module.
struct Tensors<'a> {
    checkpoint: &'a Checkpoint,
    module: &'a str,
}

impl Tensors<'_> {
    fn part(&self, suffix: &str) -> Option<Part> {
        self.checkpoint.part(&format!("{}.{suffix}", self.module))
    }

    /// The first of several tensors that exists.
    fn first(&self, suffixes: &[&'static str]) -> Option<(&'static str, Part)> {
        suffixes.iter().find_map(|suffix| Some((*suffix, self.part(suffix)?)))
    }

    fn needed(&self, suffixes: &[&'static str]) -> Result<(&'static str, Part), ModelError> {
        self.first(suffixes).ok_or_else(|| ModelError::MissingTensor {
            tensor: format!("{}.{}", self.module, suffixes[suffixes.len() - 1]),
        })
    }

    fn recipe(&self, size: [usize; 2], format: WeightFormat, conversion: Conversion, parts: Parts<Part>) -> Recipe {
        Recipe {
            name: format!("{}.weight", self.module),
            experts: None,
            rows: size[0],
            columns: size[1],
            format,
            conversion,
            parts,
        }
    }

    fn labelled(&self, codes: Part, block: [usize; 2], group: Option<usize>) -> Result<Option<Found>, ModelError> {
        let info = codes.stored.info.clone();
        let TensorType::Other { name, .. } = &info.element_type else {
            return Ok(None);
        };
        // Only this name shows that words contain several codes.
        let is_packed = info.name.ends_with(".weight_packed");
        if !(["F8_E4M3", "U8", "I8"].contains(&name.as_str()) || is_packed && name == "I32") {
            return Ok(None);
        }
        matrix(&info)?;
        let (scale_name, scales) = self.needed(&SCALES)?;
        let parts = Parts {
            codes,
            scales,
            zeros: None,
            order: None,
            whole: None,
        };
        let (recipe, mut used) = match name.as_str() {
            "F8_E4M3" => self.labelled_floats(&info, parts, block)?,
            "U8" => self.labelled_e2m1(&info, parts)?,
            _ => self.labelled_integers(&info, parts, group)?,
        };
        used.push(scale_name);
        Ok(Some((recipe, used)))
    }

    fn labelled_floats(&self, info: &TensorInfo, parts: Parts<Part>, block: [usize; 2]) -> Result<Found, ModelError> {
        let [rows, columns] = matrix(info)?;
        let scale_info = &parts.scales.stored.info;
        let Some(float8) = Float8::new(&scale_info.shape, rows, columns, block) else {
            let expected = [rows.div_ceil(block[0]), columns.div_ceil(block[1])];
            return Err(wrong_shape(scale_info, &expected));
        };
        let conversion = Conversion::Float8(float8);
        Ok((
            self.recipe([rows, columns], float8.format(columns), conversion, parts),
            Vec::new(),
        ))
    }

    fn labelled_e2m1(&self, info: &TensorInfo, mut parts: Parts<Part>) -> Result<Found, ModelError> {
        let (rows, columns) = (info.shape[0], doubled(info)?);
        let scale_info = parts.scales.stored.info.clone();
        let mut used = Vec::new();
        let e2m1 = if is_type(&scale_info, "F8_E4M3") {
            let divides = info.name.ends_with("_packed");
            let wanted = if divides {
                "weight_global_scale"
            } else {
                "weight_scale_2"
            };
            let (_, whole) = self.needed(&[wanted])?;
            check_shape(&whole.stored.info, &[&[], &[1]])?;
            parts.whole = Some(whole);
            used.push(wanted);
            E2m1::Nv { divides }
        } else {
            E2m1::Mx
        };
        check_type(&scale_info, &["F8_E4M3", "F8_E8M0", "U8"], "F8_E4M3, F8_E8M0 or U8")?;
        check_shape(&scale_info, &[&[rows, columns.div_ceil(e2m1.group())]])?;
        check_groups(info, columns, e2m1.group())?;
        let conversion = Conversion::E2m1(e2m1);
        Ok((
            self.recipe([rows, columns], e2m1.format(columns), conversion, parts),
            used,
        ))
    }

    fn labelled_integers(
        &self,
        info: &TensorInfo,
        mut parts: Parts<Part>,
        group: Option<usize>,
    ) -> Result<Found, ModelError> {
        let [rows, across] = matrix(info)?;
        let scale_info = &parts.scales.stored.info;
        let mut used = Vec::new();
        let (columns, bits, packing) = if is_type(info, "I32") {
            used.push("weight_shape");
            let (columns, bits) = self.packed_size(info, rows)?;
            (columns, bits, Packing::Rows)
        } else {
            (across, 8, Packing::Signed)
        };
        let stored_groups = scale_info.shape.get(1).copied().unwrap_or(1);
        let group = group_columns(scale_info, columns, group, stored_groups)?;
        let groups = columns.div_ceil(group);
        check_shape(scale_info, &[&[rows, groups], &[rows], &[1], &[]])?;
        let zeros = match self.part("weight_zero_point") {
            None => Zeros::Half,
            Some(zeros) => {
                used.push("weight_zero_point");
                let info = &zeros.stored.info;
                check_type(info, &["I32", "I8"], "I32 or I8")?;
                let layout = if is_type(info, "I32") {
                    check_shape(info, &[&[rows.div_ceil(32 / bits), groups]])?;
                    Zeros::ByRow
                } else {
                    check_shape(info, &[&[rows, groups], &[1], &[]])?;
                    Zeros::Signed
                };
                parts.zeros = Some(zeros);
                layout
            }
        };
        if let Some(order) = self.part("weight_g_idx") {
            used.push("weight_g_idx");
            parts.order = Some(self.checked_order(order, columns)?);
        }
        let integers = Integers {
            bits,
            packing,
            group,
            zeros,
        };
        let conversion = Conversion::Integers(integers);
        Ok((
            self.recipe([rows, columns], integers.format(columns), conversion, parts),
            used,
        ))
    }

    /// The columns and bits of a matrix with codes in words; `weight_shape` gives its rows and columns.
    fn packed_size(&self, info: &TensorInfo, rows: usize) -> Result<(usize, usize), ModelError> {
        let (_, shape) = self.needed(&["weight_shape"])?;
        check_type(&shape.stored.info, &["I64", "I32"], "I64 or I32")?;
        check_shape(&shape.stored.info, &[&[2]])?;
        let bytes = self.checkpoint.small_bytes(&shape)?;
        let number = |bytes: &[u8]| {
            let mut number = [0; 8];
            number[..bytes.len()].copy_from_slice(bytes);
            usize::try_from(i64::from_le_bytes(number)).unwrap_or_default()
        };
        let (height, columns) = (number(&bytes[..bytes.len() / 2]), number(&bytes[bytes.len() / 2..]));
        let bits = [4, 8, 2]
            .into_iter()
            .find(|bits| columns.div_ceil(32 / bits) == info.shape[1]);
        match bits.filter(|_| height == rows && columns > 0) {
            Some(bits) => Ok((columns, bits)),
            None => Err(wrong_shape(info, &[height, columns.div_ceil(8)])),
        }
    }

    fn gptq(&self, codes: Part, zero_offset: i32, group: Option<usize>) -> Result<Found, ModelError> {
        let info = codes.stored.info.clone();
        check_type(&info, &["I32"], "I32")?;
        let [words, rows] = matrix(&info)?;
        let (_, scales) = self.needed(&["scales"])?;
        let (_, zeros) = self.needed(&["qzeros"])?;
        let (scale_info, zero_info) = (&scales.stored.info, &zeros.stored.info);
        let [groups, width] = matrix(scale_info)?;
        check_type(zero_info, &["I32"], "I32")?;
        let [_, zero_words] = matrix(zero_info)?;
        let bits = [4, 8, 3, 2]
            .into_iter()
            .find(|bits| (rows * bits).div_ceil(32) == zero_words);
        let Some(bits) = bits.filter(|bits| (words * 32).is_multiple_of(*bits)) else {
            return Err(wrong_shape(zero_info, &[groups, rows / 8]));
        };
        let columns = words * 32 / bits;
        if width != rows {
            return Err(wrong_shape(scale_info, &[groups, rows]));
        }
        check_shape(zero_info, &[&[groups, zero_words]])?;
        let integers = Integers {
            bits,
            packing: Packing::Columns,
            group: group_columns(scale_info, columns, group, groups)?,
            zeros: Zeros::ByGroup { offset: zero_offset },
        };
        let order = self
            .part("g_idx")
            .map(|order| self.checked_order(order, columns))
            .transpose()?;
        let mut used = vec!["scales", "qzeros"];
        used.extend(order.as_ref().map(|_| "g_idx"));
        let parts = Parts {
            codes,
            scales,
            zeros: Some(zeros),
            order,
            whole: None,
        };
        let conversion = Conversion::Integers(integers);
        Ok((
            self.recipe([rows, columns], integers.format(columns), conversion, parts),
            used,
        ))
    }

    fn awq(&self, codes: Part) -> Result<Found, ModelError> {
        let info = codes.stored.info.clone();
        check_type(&info, &["I32"], "I32")?;
        let [columns, words] = matrix(&info)?;
        let rows = 8 * words;
        let (_, scales) = self.needed(&["scales"])?;
        let (_, zeros) = self.needed(&["qzeros"])?;
        let [groups, _] = matrix(&scales.stored.info)?;
        check_shape(&scales.stored.info, &[&[groups, rows]])?;
        check_type(&zeros.stored.info, &["I32"], "I32")?;
        check_shape(&zeros.stored.info, &[&[groups, words]])?;
        let integers = Integers {
            bits: 4,
            packing: Packing::Awq,
            group: group_columns(&scales.stored.info, columns, None, groups)?,
            zeros: Zeros::Awq,
        };
        let parts = Parts {
            codes,
            scales,
            zeros: Some(zeros),
            order: None,
            whole: None,
        };
        let conversion = Conversion::Integers(integers);
        let recipe = self.recipe([rows, columns], integers.format(columns), conversion, parts);
        Ok((recipe, vec!["scales", "qzeros"]))
    }

    fn mlx(&self, codes: Part, groups: MlxGroups) -> Result<Option<Found>, ModelError> {
        let info = codes.stored.info.clone();
        if !is_type(&info, "U32") {
            return Ok(None);
        }
        // The matrices of all experts are stacked.
        let (rows, words, above) = match info.shape[..] {
            [experts, rows, words] => (experts.saturating_mul(rows), words, Some([experts, rows])),
            _ => {
                let [rows, words] = matrix(&info)?;
                (rows, words, None)
            }
        };
        let (_, scales) = self.needed(&["scales"])?;
        let columns = words * 32 / groups.bits;
        let across = columns / groups.columns.max(1);
        let shape = match above {
            Some([experts, rows]) => vec![experts, rows, across],
            None => vec![rows, across],
        };
        check_shape(&scales.stored.info, &[&shape])?;
        if !columns.is_multiple_of(groups.columns) {
            return Err(wrong_shape(&info, &[rows, words.next_multiple_of(groups.columns)]));
        }
        let mut used = vec!["scales"];
        let (format, conversion, zeros) = match groups.mode {
            MlxMode::Affine => {
                let (_, biases) = self.needed(&["biases"])?;
                check_shape(&biases.stored.info, &[&shape])?;
                used.push("biases");
                let integers = Integers {
                    bits: groups.bits,
                    packing: Packing::Rows,
                    group: groups.columns,
                    zeros: Zeros::Biases,
                };
                (integers.format(columns), Conversion::Integers(integers), Some(biases))
            }
            mode => {
                let e2m1 = if mode == MlxMode::Mxfp4 {
                    E2m1::Mx
                } else {
                    E2m1::Nv { divides: false }
                };
                check_type(&scales.stored.info, &["U8"], "U8")?;
                (e2m1.format(columns), Conversion::E2m1(e2m1), None)
            }
        };
        let parts = Parts {
            codes,
            scales,
            zeros,
            order: None,
            whole: None,
        };
        Ok(Some((self.recipe([rows, columns], format, conversion, parts), used)))
    }

    fn checked_order(&self, order: Part, columns: usize) -> Result<Part, ModelError> {
        check_type(&order.stored.info, &["I32"], "I32")?;
        check_shape(&order.stored.info, &[&[columns]])?;
        Ok(order)
    }
}

/// The two sizes of a tensor, which must be a matrix.
fn matrix(info: &TensorInfo) -> Result<[usize; 2], ModelError> {
    match info.shape[..] {
        [rows, columns] => Ok([rows, columns]),
        _ => Err(wrong_shape(info, &[1, info.shape.iter().product()])),
    }
}

/// The columns of a matrix with two codes in a byte.
fn doubled(info: &TensorInfo) -> Result<usize, ModelError> {
    info.shape[1]
        .checked_mul(2)
        .ok_or_else(|| wrong_shape(info, &info.shape))
}

/// Columns of a group, for a matrix with `groups` groups; `configured` comes from the settings.
fn group_columns(
    scales: &TensorInfo,
    columns: usize,
    configured: Option<usize>,
    groups: usize,
) -> Result<usize, ModelError> {
    match configured {
        Some(group) if columns.div_ceil(group) == groups => Ok(group),
        _ if columns.is_multiple_of(groups) => Ok(columns / groups),
        Some(group) => Err(wrong_shape(scales, &[scales.shape[0], columns.div_ceil(group)])),
        None => Err(wrong_shape(scales, &[scales.shape[0], 1])),
    }
}

fn check_groups(info: &TensorInfo, columns: usize, group: usize) -> Result<(), ModelError> {
    if columns.is_multiple_of(group) {
        Ok(())
    } else {
        Err(wrong_shape(
            info,
            &[info.shape[0], info.shape[1].next_multiple_of(group)],
        ))
    }
}

pub(super) fn check_shape(info: &TensorInfo, expected: &[&[usize]]) -> Result<(), ModelError> {
    if expected.contains(&&info.shape[..]) {
        Ok(())
    } else {
        Err(wrong_shape(info, expected[0]))
    }
}

pub(super) fn wrong_shape(info: &TensorInfo, expected: &[usize]) -> ModelError {
    ModelError::WrongShape {
        tensor: info.name.clone(),
        expected: expected.to_vec(),
        found: info.shape.clone(),
    }
}

pub(super) fn check_type(info: &TensorInfo, known: &[&str], expected: &'static str) -> Result<(), ModelError> {
    if known.iter().any(|name| is_type(info, name)) {
        return Ok(());
    }
    Err(ModelError::WrongType {
        tensor: info.name.clone(),
        expected,
        found: info.element_type.clone(),
    })
}
