//! Keys and values in pages, for arrays that arrive in parts, with the policies of both phases.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use numpy::{IntoPyArray, PyArray3, PyArrayMethods};
use pyo3::prelude::*;
use riffle_engine::{
    AttentionPrecision, CachedAttention, CachedAttentionOptions, EngineOptions, LayerCall, ProjectedRows, parse_bytes,
    parse_kv_type,
};
use riffle_kv::{CacheShape, DiskTier, KvCache, KvError, KvTiers, LayerShape, LayerShapes};
use riffle_policy::{CostModel, Phase, PolicyRules};
use serde_json::{Value, json};

use crate::arrays::{HeadsArray, without_padding};
use crate::engine::{closed, unpicklable};
use crate::failure::{Class, Failure};
use crate::options::policy;
use crate::process::{OfProcess, Threads};
use crate::watch::{run, run_short};

/// Rows of a call that is long enough to poll for signals.
const LONG_ROWS: usize = 64;

/// The keyword arguments of `riffle.PagedCache`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct GivenCache {
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    kv_type: String,
    prefill: String,
    decode: String,
    page_tokens: Option<usize>,
    chunk_tokens: Option<usize>,
    context: Option<usize>,
    kv_ram: Option<String>,
    kv_disk: Option<PathBuf>,
    attention: Option<String>,
    audit: bool,
}

/// Options of one attention call on a layer.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct GivenLayer {
    layer: usize,
    is_prefill: bool,
    scale: Option<f32>,
    soft_cap: Option<f32>,
    window: Option<usize>,
}

/// A query compared with exact attention: layer, KV head, head, position, kept mass, read spans.
type Audited = (usize, usize, usize, usize, f64, Vec<(usize, usize)>);

/// A cache of one sequence, wrapped by `riffle.PagedCache`.
#[pyclass(frozen, module = "riffle._riffle", name = "PagedCache")]
pub(crate) struct PyPagedCache {
    held: Mutex<Option<OfProcess<CachedAttention>>>,
    threads: Arc<Threads>,
    /// Elements of a head without padding.
    width: usize,
    audited: Arc<Mutex<Vec<Audited>>>,
}

impl GivenCache {
    fn shape(&self) -> Result<CacheShape, Failure> {
        let (key_format, value_format) = parse_kv_type(&self.kv_type)?;
        Ok(CacheShape {
            layers: LayerShapes::alike(
                self.layers,
                LayerShape::new(self.kv_heads, self.head_dim.next_multiple_of(riffle_attention::LANES)),
            ),
            page_tokens: self.page_tokens.unwrap_or(riffle_kv::DEFAULT_PAGE_TOKENS),
            key_format,
            value_format,
        })
    }

    fn options(&self) -> Result<CachedAttentionOptions, Failure> {
        let (prefill, decode) = (policy(&self.prefill)?, policy(&self.decode)?);
        let (prefill, decode) = (PolicyRules::from(prefill), PolicyRules::from(decode));
        let preferred = prefill
            .preferred_chunk_tokens()
            .unwrap_or(EngineOptions::default().machine.chunk_tokens);
        let attention = match self.attention.as_deref() {
            None | Some("exact") => AttentionPrecision::Exact,
            Some("rounded") => AttentionPrecision::Rounded,
            Some(other) => {
                return Err(Failure::option(format!(
                    "attention is {other:?}, but it must be exact or rounded"
                )));
            }
        };
        Ok(CachedAttentionOptions {
            heads: self.heads,
            prefill,
            decode,
            chunk_tokens: self.chunk_tokens.unwrap_or(preferred),
            attention,
            cost: CostModel::default(),
            audit: self.audit,
        })
    }

    fn tiers(&self, options: &CachedAttentionOptions) -> Result<KvTiers, Failure> {
        let ram = self
            .kv_ram
            .as_deref()
            .map(|text| parse_bytes("ram_budget_bytes", text.trim()))
            .transpose()?;
        if self.kv_disk.is_some() && (ram.is_none() || self.context.is_none()) {
            return Err(Failure::option(
                "kv_disk needs kv_ram, the bytes of pages in memory, and context, the most tokens",
            ));
        }
        if let Some(folder) = self.kv_disk.as_ref().filter(|folder| !folder.is_dir()) {
            return Err(Failure::option(format!(
                "kv_disk is {}, but there is no such folder: create it, or choose another",
                folder.display()
            )));
        }
        let mut tiers = KvTiers::memory(ram);
        tiers.disk = self.kv_disk.clone().map(|folder| DiskTier {
            folder,
            budget_bytes: None,
        });
        tiers.outlook.context_tokens = self.context.unwrap_or(0);
        tiers.outlook.append_tokens = options.chunk_tokens;
        tiers.outlook.scans_keys = options.prefill.scans_keys() || options.decode.scans_keys();
        Ok(tiers)
    }
}

impl PyPagedCache {
    fn lock(&self) -> Result<MutexGuard<'_, Option<OfProcess<CachedAttention>>>, Failure> {
        match self.held.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Failure::new(
                Class::Session,
                "this cache is in use by another call: a cache serves one sequence, one call at a time",
            )),
        }
    }

    fn look<T>(&self, look: impl FnOnce(&mut CachedAttention) -> Result<T, Failure>) -> Result<T, Failure> {
        let mut guard = self.lock()?;
        look(open(&mut guard)?)
    }
}

fn open(held: &mut Option<OfProcess<CachedAttention>>) -> Result<&mut CachedAttention, Failure> {
    held.as_mut().ok_or_else(|| closed("cache"))?.get_mut()
}

fn internal(error: &serde_json::Error) -> Failure {
    Failure::new(Class::Internal, error.to_string())
}

#[pymethods]
impl PyPagedCache {
    #[new]
    fn new(options: GivenCache) -> Result<Self, Failure> {
        let shape = options.shape()?;
        shape.validate().map_err(|error| match error {
            // Rows are padded to that width.
            KvError::Shape { what: "key_width", .. } => KvError::Shape {
                what: "head_dim",
                value: options.head_dim,
                requirement: "from 1 to 16384",
            },
            error => error,
        })?;
        let attention = options.options()?;
        let tiers = options.tiers(&attention)?;
        if tiers.has_farther() && tiers.ram_budget_bytes.unwrap_or(0) < tiers.least_near_bytes(&shape) {
            return Err(Failure::new(
                Class::OutOfMemory,
                format!(
                    "kv_ram is too little for pages on their way from disk: give at least {}",
                    riffle_engine::human_bytes(tiers.least_near_bytes(&shape))
                ),
            ));
        }
        let is_audited = attention.audit;
        let mut attention = CachedAttention::new(KvCache::with_tiers(shape, tiers)?, attention)?;
        let audited: Arc<Mutex<Vec<Audited>>> = Arc::default();
        if is_audited {
            let seen = Arc::clone(&audited);
            attention.observe_audit(move |query| {
                let spans = query.read.iter().map(|span| (span.start, span.end)).collect();
                let query = (
                    query.layer,
                    query.kv_head,
                    query.head,
                    query.position,
                    query.kept_mass,
                    spans,
                );
                seen.lock().unwrap_or_else(PoisonError::into_inner).push(query);
            })?;
        }
        Ok(Self {
            held: Mutex::new(Some(OfProcess::new(attention))),
            threads: Threads::shared()?,
            width: options.head_dim,
            audited,
        })
    }

    fn close(&self) -> Result<(), Failure> {
        self.lock()?.take();
        Ok(())
    }

    #[getter]
    fn is_closed(&self) -> bool {
        self.held.try_lock().is_ok_and(|held| held.is_none())
    }

    /// Appends keys and values `[kv_heads, tokens, width]` to a layer and attends with queries
    /// `[heads, tokens, width]`; the result is `[tokens, heads, width]`.
    fn attend<'py>(
        &self,
        py: Python<'py>,
        arrays: [Bound<'py, PyAny>; 3],
        call: GivenLayer,
    ) -> Result<Bound<'py, PyArray3<f32>>, Failure> {
        let [q, k, v] = &arrays;
        let (q, k, v) = (
            HeadsArray::new("queries", q)?,
            HeadsArray::new("keys", k)?,
            HeadsArray::new("values", v)?,
        );
        let mut guard = self.lock()?;
        let attention = open(&mut guard)?;
        let (heads, kv_heads) = (attention.options().heads, attention.cache().shape().layer(0).kv_heads);
        let padded = attention.cache().shape().layer(0).key_width;
        for (name, array, count) in [("queries", &q, heads), ("keys", &k, kv_heads), ("values", &v, kv_heads)] {
            if [array.heads, array.tokens, array.width] != [count, q.tokens, self.width] {
                return Err(Failure::array(format!(
                    "{name} are ({}, {}, {}), but this cache takes ({count}, {}, {}): heads, tokens and elements of a head",
                    array.heads, array.tokens, array.width, q.tokens, self.width
                )));
            }
        }
        let scale = call.scale.unwrap_or_else(|| 1.0 / (self.width as f32).sqrt());
        if !scale.is_finite() || call.soft_cap.is_some_and(|cap| !(cap.is_finite() && cap > 0.0)) {
            return Err(Failure::option("scale must be a number, and soft_cap above 0"));
        }
        if call.window == Some(0) {
            return Err(Failure::option("window is 0, but it must be at least 1 token"));
        }
        let call = LayerCall {
            layer: call.layer,
            phase: if call.is_prefill { Phase::Prefill } else { Phase::Decode },
            scale,
            soft_cap: call.soft_cap,
            window: call.window,
        };
        let (tokens, width) = (q.tokens, self.width);
        let (q, k, v) = (q.view()?, k.view()?, v.view()?);
        let mut work = || {
            let rows = [q, k, v].map(|view| view.rows(0..tokens, padded));
            let rows = ProjectedRows {
                tokens,
                queries: &rows[0],
                keys: &rows[1],
                values: &rows[2],
            };
            let mut output = vec![0.0; rows.queries.len()];
            attention.attend(&call, &rows, &mut output)?;
            Ok(without_padding(output, padded, width))
        };
        let output = if tokens < LONG_ROWS {
            run_short(py, &self.threads, work)?
        } else {
            run(py, &self.threads, None, |_| work())?
        };
        Ok(output.into_pyarray(py).reshape([tokens, heads, width])?)
    }

    /// Appends keys and values `[kv_heads, tokens, width]` to a layer without attending.
    fn append(&self, py: Python<'_>, arrays: [Bound<'_, PyAny>; 2], layer: usize) -> Result<(), Failure> {
        let [k, v] = &arrays;
        let (k, v) = (HeadsArray::new("keys", k)?, HeadsArray::new("values", v)?);
        let mut guard = self.lock()?;
        let attention = open(&mut guard)?;
        let (kv_heads, padded) = (
            attention.cache().shape().layer(0).kv_heads,
            attention.cache().shape().layer(0).key_width,
        );
        for (name, array) in [("keys", &k), ("values", &v)] {
            if [array.heads, array.tokens, array.width] != [kv_heads, k.tokens, self.width] {
                return Err(Failure::array(format!(
                    "{name} are ({}, {}, {}), but this cache takes ({kv_heads}, {}, {}): heads, tokens and elements of a head",
                    array.heads, array.tokens, array.width, k.tokens, self.width
                )));
            }
        }
        let (tokens, k, v) = (k.tokens, k.view()?, v.view()?);
        run(py, &self.threads, None, |_| {
            let [keys, values] = [k, v].map(|view| view.rows(0..tokens, padded));
            Ok(attention.append(layer, &keys, &values)?)
        })
    }

    fn tokens(&self, layer: usize) -> Result<usize, Failure> {
        self.look(|attention| Ok(attention.tokens(layer)))
    }

    /// Forgets everything after the first `tokens` tokens of every layer.
    fn truncate(&self, tokens: usize) -> Result<(), Failure> {
        self.look(|attention| {
            if attention.truncate(tokens) {
                Ok(())
            } else {
                Err(Failure::new(
                    Class::Session,
                    format!("tokens before {tokens} have left the cache for good: read the text again"),
                ))
            }
        })
    }

    /// Tokens, pages, bytes by tier and the share of read pairs, as JSON.
    fn usage(&self) -> Result<String, Failure> {
        self.look(|attention| {
            let (usage, pairs) = (attention.usage(), attention.pairs());
            let value: Value = json!({
                "tokens": usage.tokens,
                "pages": usage.pages,
                "ram_bytes": usage.bytes_by_tier.device + usage.bytes_by_tier.ram,
                "disk_bytes": usage.bytes_by_tier.disk,
                "density": if pairs.causal == 0 { 1.0 } else { pairs.read as f64 / pairs.causal as f64 },
            });
            Ok(value.to_string())
        })
    }

    /// Attention mass that the policies kept, as JSON; `None` without an audit.
    fn audit(&self) -> Result<Option<String>, Failure> {
        let report = self.look(|attention| Ok(attention.audit()))?;
        report
            .map(|report| serde_json::to_string(&report).map_err(|error| internal(&error)))
            .transpose()
    }

    /// The queries audited since the last call.
    fn take_audited(&self) -> Vec<Audited> {
        std::mem::take(&mut *self.audited.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(unpicklable("PagedCache", "its pages belong to this process"))
    }
}
