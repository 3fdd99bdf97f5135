//! The tensors of a layer's experts in the files, if parts of the files can be used without conversion.

use std::collections::BTreeSet;

use riffle_linear::{PackedMatrix, WeightFormat};

use super::super::load::{DOWNS, FUSED_INPUTS, FUSED_OUTPUTS, GATES, UPS};
use super::ExpertClass;
use crate::weights::{Checkpoint, StackParts};
use crate::{ExpertShape, ModelConfig};

/// The experts of a layer.
pub(crate) struct ExpertForm {
    /// The prefix of the tensors' names, including the full stop.
    pub(crate) base: String,
    /// Gate, up and down; experts without gates have two parts.
    pub(crate) parts: [Option<PartForm>; 3],
}

/// One matrix of each expert.
pub(crate) struct PartForm {
    pub(crate) format: WeightFormat,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// The tensor of all experts, or the tensor of one expert with `*` for its number.
    pub(crate) name: String,
    /// Index of the half to use within an expert's matrix.
    pub(crate) half: Option<usize>,
    pub(crate) places: Vec<Place>,
}

/// The matrix of an expert in a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) file: usize,
    pub(crate) offset: u64,
    /// The factor of the whole tensor.
    pub(crate) factor: f32,
}

impl PartForm {
    /// The bytes of a matrix in the file.
    pub(crate) fn file_bytes(&self) -> usize {
        self.format.row_bytes(self.columns).unwrap_or(0) * self.rows
    }

    /// Bytes of the part in memory.
    fn packed_bytes(&self) -> Option<u64> {
        let bytes = PackedMatrix::packed_bytes(self.format, self.rows, self.columns).ok()?;
        Some(bytes as u64)
    }

    /// The name of the tensor with the matrix of an expert.
    pub(crate) fn tensor(&self, expert: usize) -> String {
        self.name.replace('*', &expert.to_string())
    }

    /// The names of the tensors of all experts.
    pub(crate) fn tensors(&self) -> BTreeSet<String> {
        (0..self.places.len()).map(|expert| self.tensor(expert)).collect()
    }
}

impl ExpertForm {
    /// The layer's number of experts, the bytes of one, and the bytes of its largest part in the file.
    fn class(&self) -> Option<ExpertClass> {
        let parts = || self.parts.iter().flatten();
        let sizes = parts().map(PartForm::packed_bytes);
        Some(ExpertClass {
            layers: 1,
            experts: parts().next()?.places.len(),
            expert_bytes: sizes.sum::<Option<u64>>()?,
            file_bytes: parts().map(|part| part.file_bytes() as u64).sum(),
            largest_part_bytes: parts().map(PartForm::file_bytes).max()? as u64,
        })
    }

    /// True if both fit the same slots.
    pub(crate) fn is_like(&self, other: &ExpertForm) -> bool {
        let kind = |form: &ExpertForm| {
            let part = |part: &PartForm| (part.format, part.rows, part.columns);
            form.parts.each_ref().map(|found| found.as_ref().map(part))
        };
        kind(self) == kind(other)
    }
}

/// The layers whose experts can be loaded from the files on demand, in order of names. Other layers have tensors that
/// need conversion, such as transposed ones.
pub(crate) fn expert_forms(weights: &Checkpoint, config: &ModelConfig) -> Vec<ExpertForm> {
    let Some(shape) = &config.experts else {
        return Vec::new();
    };
    let bases: BTreeSet<&str> = weights.names().filter_map(|name| base_of(name)).collect();
    let reader = Reader {
        weights,
        shape,
        hidden: config.hidden_size,
    };
    bases.into_iter().filter_map(|base| reader.form(base)).collect()
}

/// The sizes of these experts; layers that share slots are counted together.
pub(crate) fn expert_classes(forms: &[ExpertForm]) -> Vec<ExpertClass> {
    let mut classes: Vec<(&ExpertForm, ExpertClass)> = Vec::new();
    for form in forms {
        match classes.iter_mut().find(|(first, _)| first.is_like(form)) {
            Some((_, class)) => class.layers += 1,
            None => classes.extend(form.class().map(|class| (form, class))),
        }
    }
    classes.into_iter().map(|(_, class)| class).collect()
}

/// True for the name of a tensor of experts in one of the model's own layers.
pub(crate) fn names_experts(name: &str) -> bool {
    base_of(name).is_some() && !name.contains("shared_mlp.")
}

/// The prefix of the name of a tensor of experts in one of the model's own layers.
fn base_of(name: &str) -> Option<&str> {
    let within = name.strip_prefix("model.layers.")?;
    let ends = [".experts.", ".input_linear.weight", ".output_linear.weight"];
    let at = ends.iter().find_map(|end| within.find(end))?;
    Some(&name[..name.len() - within.len() + at + 1])
}

struct Reader<'a> {
    weights: &'a Checkpoint,
    shape: &'a ExpertShape,
    hidden: usize,
}

impl Reader<'_> {
    fn form(&self, base: &str) -> Option<ExpertForm> {
        let (hidden, width) = (self.hidden, self.shape.width);
        let has = |name: &str| self.weights.info(&format!("{base}{name}")).is_some();
        let fused = |names: &[&str]| names.iter().find(|name| has(name)).map(|name| format!("{base}{name}"));
        let each = |names: &[&str]| {
            let found = names.iter().find(|name| has(&format!("experts.0.{name}.weight")))?;
            Some(format!("{base}experts.*.{found}.weight"))
        };
        let parts = if let Some(up) = each(UPS) {
            let gate = match each(GATES) {
                Some(gate) => Some(self.each(gate, [width, hidden])?),
                None => None,
            };
            let (up, down) = (
                self.each(up, [width, hidden])?,
                self.each(each(DOWNS)?, [hidden, width])?,
            );
            [gate, Some(up), Some(down)]
        } else {
            let down = self.stacked(fused(FUSED_OUTPUTS)?, [hidden, width], StackParts::Whole, 0)?;
            let (gate, up) = match fused(FUSED_INPUTS) {
                Some(both) => {
                    let half = |part| self.stacked(both.clone(), [2 * width, hidden], StackParts::Halves, part);
                    (Some(half(0)?), half(1)?)
                }
                None => {
                    let whole = |name| self.stacked(name, [width, hidden], StackParts::Whole, 0);
                    let gate = match fused(&["experts.gate_proj.weight"]) {
                        Some(gate) => Some(whole(gate)?),
                        None => None,
                    };
                    (gate, whole(fused(&["experts.up_proj.weight", "experts.up_proj"])?)?)
                }
            };
            [gate, Some(up), Some(down)]
        };
        Some(ExpertForm {
            base: base.to_owned(),
            parts,
        })
    }

    /// One matrix of each expert, in a separate tensor.
    fn each(&self, name: String, [rows, columns]: [usize; 2]) -> Option<PartForm> {
        let mut format = None;
        let place = |expert: usize| {
            let stored = self.weights.plain(&name.replace('*', &expert.to_string()))?;
            let is_same = *format.get_or_insert(stored.format) == stored.format;
            (is_same && stored.shape == [rows, columns]).then_some(Place {
                file: stored.file,
                offset: stored.offset,
                factor: stored.factor,
            })
        };
        let places = (0..self.shape.experts).map(place).collect::<Option<Vec<_>>>()?;
        Some(PartForm {
            format: format?,
            rows,
            columns,
            half: None,
            places,
            name,
        })
    }

    /// A part of each matrix in a tensor of all experts.
    fn stacked(&self, name: String, [rows, columns]: [usize; 2], parts: StackParts, part: usize) -> Option<PartForm> {
        let stored = self.weights.plain(&name)?;
        let experts = self.shape.experts;
        // Both orders may have the same shape: then only the names in GGUF files decide.
        let is_straight = stored.shape == [experts, rows, columns] && (rows != columns || name.ends_with(".weight"));
        if !is_straight {
            return None;
        }
        let matrix_bytes = stored.format.row_bytes(columns)?.checked_mul(rows)? as u64;
        let part_bytes = matrix_bytes / parts.count() as u64;
        let place = |expert: usize| Place {
            file: stored.file,
            offset: stored.offset + expert as u64 * matrix_bytes + part as u64 * part_bytes,
            factor: stored.factor,
        };
        Some(PartForm {
            format: stored.format,
            rows: rows / parts.count(),
            columns,
            half: (parts.count() > 1).then_some(part),
            places: (0..experts).map(place).collect(),
            name,
        })
    }
}
