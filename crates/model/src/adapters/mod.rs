//! LoRA adapters: low-rank parts that are computed beside the weights of projections, `y = W x + s · B (A x)`.

mod peft;
mod scales;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_128;

use crate::ModelError;
use crate::gguf;
use crate::weights::{Checkpoint, RowOrder};

pub use scales::{AdapterScales, MOST_ADAPTERS};

/// An adapter to load beside a model.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterSpec {
    /// A PEFT folder or a GGUF file.
    pub path: PathBuf,
    /// Default factor on the adapter's part, for sequences without their own; 1 is the trained strength.
    pub scale: f32,
}

/// Facts of a loaded adapter.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct AdapterInfo {
    /// Path of the adapter's file or folder.
    pub path: PathBuf,
    /// Number of adapted projections.
    pub modules: usize,
    /// The largest rank of the parts.
    pub rank: usize,
    /// Bytes of the adapter's parts in memory.
    pub bytes: u64,
    /// A hash of the adapter's settings and of every byte of its weights.
    pub fingerprint: u128,
}

/// An adapter whose headers were checked against a model.
pub(crate) struct Adapter {
    path: PathBuf,
    /// `{module}.lora_A` and `{module}.lora_B`.
    weights: Checkpoint,
    modules: BTreeMap<String, Module>,
    taken: BTreeSet<String>,
    fingerprint: u128,
}

/// The part of an adapter for one projection.
struct Module {
    rank: usize,
    inputs: usize,
    outputs: usize,
    /// alpha / rank, unless the settings give another factor.
    scale: f32,
}

/// The factor of a module, by its name and rank.
pub(crate) type ScaleOf = dyn Fn(&str, usize) -> Result<f32, ModelError>;

/// The contents of the files of an adapter.
pub(crate) struct AdapterFiles {
    /// The folder or the file.
    pub(crate) path: PathBuf,
    /// The tensors, `{module}.lora_A` and `{module}.lora_B`; modules have the family's names.
    pub(crate) weights: Checkpoint,
    /// A hash of the settings.
    pub(crate) settings: u128,
    /// The factor of a module of a rank.
    pub(crate) scale: Box<ScaleOf>,
    /// True for a GGUF file.
    pub(crate) is_gguf: bool,
}

/// The model beside which an adapter is loaded.
pub(crate) struct Base<'a> {
    pub(crate) weights: &'a Checkpoint,
    pub(crate) config: &'a crate::ModelConfig,
    /// Maps a tensor's name to the name in its family.
    pub(crate) known_name: &'a dyn Fn(&str) -> String,
    /// True for a GGUF file.
    pub(crate) is_gguf: bool,
}

/// The values of one projection's part.
pub(crate) struct LowRankWeights {
    /// Number of the adapter.
    pub(crate) adapter: usize,
    pub(crate) rank: usize,
    /// `[rank, inputs]`
    pub(crate) down: Vec<f32>,
    /// `[outputs, rank]`
    pub(crate) up: Vec<f32>,
    pub(crate) scale: f32,
}

/// Multiple to which rows of matrices are padded in memory.
const PADDED_ROWS: usize = 16;
/// The most parts of a fused projection.
const MOST_FUSED: usize = 3;
/// Suffixes of the names of the two parts.
pub(crate) const DOWN: &str = ".lora_A";
pub(crate) const UP: &str = ".lora_B";

/// An error about an adapter.
pub(crate) fn unusable(path: &Path, problem: impl Into<String>) -> ModelError {
    ModelError::AdapterRefused {
        path: path.to_owned(),
        problem: problem.into(),
    }
}

impl Adapter {
    /// Opens the adapter at `path` and checks it against its model. The weights are only hashed.
    ///
    /// # Errors
    /// [`ModelError::AdapterRefused`] names the part that is not supported or does not belong to the model; errors of
    /// its files.
    pub(crate) fn open(path: &Path, base: &Base<'_>) -> Result<Self, ModelError> {
        if !path.exists() {
            return Err(unusable(path, "no such file or folder; check the path"));
        }
        let files = if path.is_dir() {
            peft::open(path, base)?
        } else {
            gguf::open_adapter(path, base)?
        };
        let modules = modules(&files, base)?;
        let mut hash = XxHash3_128::new();
        hash.write(&files.settings.to_le_bytes());
        files.weights.for_each_file(|bytes| hash.write(bytes))?;
        Ok(Self {
            path: files.path,
            weights: files.weights,
            modules,
            taken: BTreeSet::new(),
            fingerprint: hash.finish_128(),
        })
    }

    pub(crate) fn info(&self) -> AdapterInfo {
        AdapterInfo {
            path: self.path.clone(),
            modules: self.modules.len(),
            rank: self.modules.values().map(|module| module.rank).max().unwrap_or(0),
            bytes: self.modules.values().map(Module::bytes).sum(),
            fingerprint: self.fingerprint,
        }
    }

    /// Takes the part for the projection `name`; `order` is the order of the projection's rows in the model's file.
    pub(crate) fn take(&mut self, name: &str, order: Option<RowOrder>) -> Result<Option<LowRankWeights>, ModelError> {
        let Some(module) = self.modules.get(name) else {
            return Ok(None);
        };
        self.taken.insert(name.to_owned());
        let (down, up) = (format!("{name}{DOWN}"), format!("{name}{UP}"));
        if let Some(RowOrder::PartlyInterleaved { heads, first, rotated }) = order {
            self.weights.interleave_from(&up, heads, first, rotated);
        }
        Ok(Some(LowRankWeights {
            adapter: 0,
            rank: module.rank,
            down: self.weights.unpacked(&down, [module.rank, module.inputs])?,
            up: self.weights.unpacked(&up, [module.outputs, module.rank])?,
            scale: module.scale,
        }))
    }

    /// Refuses an adapter if one of its parts was not used.
    pub(crate) fn check_taken(&self) -> Result<(), ModelError> {
        match self.modules.keys().find(|name| !self.taken.contains(*name)) {
            None => Ok(()),
            Some(name) => Err(unusable(
                &self.path,
                format!("it adapts {name}, which is not computed as a linear layer here"),
            )),
        }
    }
}

impl Module {
    /// The most bytes in memory, including padding. A fused projection is split into its parts, and each is padded.
    fn bytes(&self) -> u64 {
        let down = self.rank.next_multiple_of(PADDED_ROWS) * self.inputs;
        let up = (self.outputs + MOST_FUSED * PADDED_ROWS) * self.rank;
        4 * (down + up) as u64
    }
}

/// The parts of an adapter, each with the shape of its projection.
fn modules(files: &AdapterFiles, base: &Base<'_>) -> Result<BTreeMap<String, Module>, ModelError> {
    let refused = |problem: String| unusable(&files.path, problem);
    let mut modules = BTreeMap::new();
    for name in files.weights.names() {
        let Some(module) = name.strip_suffix(DOWN) else {
            let module = name.strip_suffix(UP).unwrap_or(name);
            if files.weights.info(&format!("{module}{DOWN}")).is_none() {
                return Err(refused(format!("lora_A of {module} is missing")));
            }
            continue;
        };
        check_module(module, files, base)?;
        let shape = |name: &str| files.weights.info(name).map(|info| info.shape.clone());
        let weight = base.weights.info(&format!("{module}.weight"));
        let Some([outputs, inputs]) = weight.map(|info| &info.shape[..]) else {
            return Err(refused(format!("it adapts {module}, which this model does not have")));
        };
        let (down, up) = (shape(name), shape(&format!("{module}{UP}")));
        let (Some(down), Some(up)) = (down, up) else {
            return Err(refused(format!("lora_B of {module} is missing")));
        };
        let rank = down.first().copied().unwrap_or(0);
        if rank == 0 || down != [rank, *inputs] || up != [*outputs, rank] {
            return Err(refused(format!(
                "its parts of {module} are {down:?} and {up:?}, the model's weights are [{outputs}, {inputs}]: it belongs to another model"
            )));
        }
        let scale = (files.scale)(module, rank)?;
        if !scale.is_finite() {
            return Err(refused(format!("the factor of {module} is {scale}")));
        }
        modules.insert(
            module.to_owned(),
            Module {
                rank,
                inputs: *inputs,
                outputs: *outputs,
                scale,
            },
        );
    }
    if modules.is_empty() {
        return Err(refused("it adapts nothing".to_owned()));
    }
    Ok(modules)
}

/// Refuses parts for modules that adapters may not change here.
fn check_module(module: &str, files: &AdapterFiles, base: &Base<'_>) -> Result<(), ModelError> {
    if module.ends_with("embed_tokens") || module == "lm_head" {
        return Err(unusable(
            &files.path,
            format!("it adapts {module}; adapters of embeddings and of the output head are not supported"),
        ));
    }
    if module.contains(".linear_attn.") && files.is_gguf != base.is_gguf {
        return Err(unusable(
            &files.path,
            format!("it adapts {module}, whose rows lie otherwise in GGUF files: give adapter and model in one format"),
        ));
    }
    Ok(())
}
