//! The settings of quantised weights: the names and layouts of tensors, or the reason for refusal.

use std::collections::HashMap;

use crate::ModelError;
use crate::fields::Fields;
use crate::weights::text_name;

/// A storage scheme of quantised weights.
#[derive(Debug, Clone)]
pub(crate) struct Quantisation {
    /// The name of the program or format, as in the settings.
    pub(crate) method: &'static str,
    pub(crate) scheme: Scheme,
}

/// The names and layouts of a method's tensors.
#[derive(Debug, Clone)]
pub(crate) enum Scheme {
    /// `weight` or `weight_packed` with `weight_scale`: the element types determine the content.
    Labelled {
        /// Rows and columns of 8-bit floats that share a scale.
        block: [usize; 2],
        /// Columns of integers that share a scale, if the settings give it.
        group: Option<usize>,
    },
    /// `qweight`, `qzeros`, `scales`, `g_idx`, packed along the inputs.
    Gptq {
        /// Stored zero points are too small by this.
        zero_offset: i32,
        group: Option<usize>,
    },
    /// `qweight`, `qzeros`, `scales`, packed along the outputs in a special order.
    Awq,
    /// `weight`, `scales`, `biases`.
    Mlx {
        all: MlxGroups,
        /// Modules with other groups, by their names in the text model.
        own: HashMap<String, MlxGroups>,
    },
}

/// The layout of a matrix that MLX quantised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MlxGroups {
    pub(crate) bits: usize,
    pub(crate) columns: usize,
    pub(crate) mode: MlxMode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MlxMode {
    /// Scales and biases.
    Affine,
    Mxfp4,
    Nvfp4,
}

/// Names of settings, and the reader of their objects.
type Reader = fn(&Fields) -> Result<Scheme, ModelError>;

const METHODS: &[(&str, Reader)] = &[
    ("fp8", float8),
    ("fbgemm_fp8", float8),
    ("compressed-tensors", compressed_tensors),
    ("modelopt", modelopt),
    ("modelopt_fp4", modelopt),
    ("gptq", gptq),
    ("awq", awq),
    ("mxfp4", mxfp4),
];

/// Packings of compressed-tensors, and the name for a mix of them.
const PACKINGS: [&str; 8] = [
    "pack-quantized",
    "float-quantized",
    "int-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mixed-precision",
    "dense",
];

/// Default blocks of 8-bit floats.
const BLOCK: [usize; 2] = [128, 128];

const INSTEAD: &str =
    "use the original weights, a GGUF file, or a copy in FP8, GPTQ, AWQ, compressed-tensors or MLX form";

impl Quantisation {
    /// Reads the settings of a text model; `None` if its weights are not quantised.
    pub(crate) fn read(fields: &Fields) -> Result<Option<Quantisation>, ModelError> {
        // MLX writes its settings twice, under its own name and under the common name.
        if let Some(settings) = fields.object("quantization")? {
            return mlx(&settings).map(Some);
        }
        for name in ["quantization_config", "compression_config"] {
            let Some(settings) = fields.object(name)? else {
                continue;
            };
            let Some(found) = settings.text("quant_method")? else {
                if settings.get("bits").is_some() && settings.get("group_size").is_some() {
                    return mlx(&settings).map(Some);
                }
                return Err(fields.error(name, "names no quant_method; use the original weights or a GGUF file"));
            };
            let Some((method, read)) = METHODS.iter().find(|(method, _)| *method == found) else {
                let problem = format!("weights quantised by {found:?} are not supported; {INSTEAD}");
                return Err(fields.error(name, problem));
            };
            let scheme = read(&settings)?;
            return Ok(Some(Quantisation { method, scheme }));
        }
        Ok(None)
    }
}

impl Default for Quantisation {
    /// For files without such settings: 8-bit floats with scales are recognised by type.
    fn default() -> Self {
        Quantisation {
            method: "scales",
            scheme: Scheme::Labelled {
                block: BLOCK,
                group: None,
            },
        }
    }
}

fn refused(settings: &Fields, name: &str, what: &str) -> ModelError {
    settings.error(name, format!("{what} is not supported; {INSTEAD}"))
}

/// Refuses a text that is not one of `known`.
fn check_text(settings: &Fields, name: &str, known: &[&str]) -> Result<(), ModelError> {
    match settings.text(name)? {
        Some(found) if !known.contains(&found.to_ascii_lowercase().as_str()) => {
            Err(refused(settings, name, &format!("{found:?}")))
        }
        _ => Ok(()),
    }
}

/// A setting of two integers.
fn pair(settings: &Fields, name: &str) -> Result<Option<[usize; 2]>, ModelError> {
    let Some(numbers) = settings.positive_numbers(name)? else {
        return Ok(None);
    };
    let whole = |number: &f64| (number.fract() == 0.0 && *number <= 65536.0).then_some(*number as usize);
    match numbers.iter().map(whole).collect::<Option<Vec<usize>>>().as_deref() {
        Some(&[rows, columns]) => Ok(Some([rows, columns])),
        _ => Err(settings.error(name, "must be two whole numbers, rows and columns of a block")),
    }
}

/// A group size; -1 means whole rows.
fn group(settings: &Fields) -> Result<Option<usize>, ModelError> {
    match settings.optional_number("group_size")? {
        None | Some(-1.0) => Ok(None),
        Some(_) => settings.optional_size("group_size"),
    }
}

fn float8(settings: &Fields) -> Result<Scheme, ModelError> {
    check_text(settings, "fmt", &["e4m3"])?;
    Ok(Scheme::Labelled {
        block: pair(settings, "weight_block_size")?.unwrap_or(BLOCK),
        group: None,
    })
}

fn mxfp4(_settings: &Fields) -> Result<Scheme, ModelError> {
    Ok(Quantisation::default().scheme)
}

fn modelopt(settings: &Fields) -> Result<Scheme, ModelError> {
    check_text(settings, "quant_algo", &["fp8", "fp8_per_channel_per_token", "nvfp4"])?;
    Ok(Quantisation::default().scheme)
}

fn compressed_tensors(settings: &Fields) -> Result<Scheme, ModelError> {
    check_text(settings, "format", &PACKINGS)?;
    if let Some(sparse) = settings.object("sparsity_config")? {
        check_text(&sparse, "format", &["dense"])?;
    }
    if let Some(turned) = settings.object("transform_config")?
        && !turned.values().is_empty()
        && turned
            .object("config_groups")?
            .is_none_or(|groups| !groups.values().is_empty())
    {
        return Err(refused(settings, "transform_config", "a rotation of the activations"));
    }
    let (mut block, mut columns) = (BLOCK, None);
    if let Some(groups) = settings.object("config_groups")? {
        for name in groups.values().keys() {
            let Some(one) = groups.object(name)? else { continue };
            check_text(&one, "format", &PACKINGS)?;
            if let Some(weights) = one.object("weights")? {
                block = pair(&weights, "block_structure")?.unwrap_or(block);
                columns = group(&weights)?.or(columns);
            }
        }
    }
    Ok(Scheme::Labelled { block, group: columns })
}

fn gptq(settings: &Fields) -> Result<Scheme, ModelError> {
    check_text(settings, "checkpoint_format", &["gptq", "gptq_v2"])?;
    check_text(settings, "format", &["gptq", "gptq_v2"])?;
    let is_second = |name: &str| Ok(settings.text(name)? == Some("gptq_v2"));
    Ok(Scheme::Gptq {
        zero_offset: i32::from(!(is_second("checkpoint_format")? || is_second("format")?)),
        group: group(settings)?,
    })
}

fn awq(settings: &Fields) -> Result<Scheme, ModelError> {
    check_text(settings, "version", &["gemm"])?;
    check_text(settings, "backend", &["autoawq", "auto"])?;
    match settings.optional_size("bits")?.or(settings.optional_size("w_bit")?) {
        None | Some(4) => Ok(Scheme::Awq),
        Some(bits) => Err(refused(settings, "bits", &format!("AWQ with {bits} bits"))),
    }
}

fn mlx(settings: &Fields) -> Result<Quantisation, ModelError> {
    let all = mlx_groups(settings, None)?;
    let mut own = HashMap::new();
    for (module, value) in settings.values() {
        if value.is_object()
            && let Some(groups) = settings.object(&module)?
        {
            own.insert(text_name(&module), mlx_groups(&groups, Some(all))?);
        }
    }
    Ok(Quantisation {
        method: "mlx",
        scheme: Scheme::Mlx { all, own },
    })
}

/// The groups of all modules, or of one module if they differ from `all`.
fn mlx_groups(settings: &Fields, all: Option<MlxGroups>) -> Result<MlxGroups, ModelError> {
    let mode = match settings.text("mode")? {
        Some("affine") => MlxMode::Affine,
        Some("mxfp4") => MlxMode::Mxfp4,
        Some("nvfp4") => MlxMode::Nvfp4,
        Some(other) => return Err(refused(settings, "mode", &format!("MLX's mode {other:?}"))),
        None => all.map_or(MlxMode::Affine, |all| all.mode),
    };
    let (bits, columns) = match mode {
        MlxMode::Affine => (4, 64),
        MlxMode::Mxfp4 => (4, 32),
        MlxMode::Nvfp4 => (4, 16),
    };
    let of_all = |number: fn(MlxGroups) -> usize| all.filter(|all| all.mode == mode).map(number);
    let groups = MlxGroups {
        bits: settings
            .optional_size("bits")?
            .or(of_all(|all| all.bits))
            .unwrap_or(bits),
        columns: settings
            .optional_size("group_size")?
            .or(of_all(|all| all.columns))
            .unwrap_or(columns),
        mode,
    };
    let is_known = match mode {
        MlxMode::Affine => [2, 3, 4, 5, 6, 8].contains(&groups.bits),
        _ => (groups.bits, groups.columns) == (bits, columns),
    };
    if is_known {
        Ok(groups)
    } else {
        let what = format!("MLX with {} bits in groups of {}", groups.bits, groups.columns);
        Err(refused(settings, "bits", &what))
    }
}
