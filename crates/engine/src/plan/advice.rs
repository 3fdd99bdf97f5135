//! Finds options with which a plan would fit. Each piece of advice has been planned, so that following it succeeds.

use riffle_attention::Format;
use riffle_kv::DiskTier;

use super::{MemoryPlan, Planner};
use crate::EngineOptions;
use crate::parse::typed_bytes;

/// Shorter contexts are useless as advice.
const LEAST_CONTEXT_TOKENS: usize = 64;

/// The suggested context if there is no room for any.
const SHORT_CONTEXT_TOKENS: usize = 4096;

/// Options in words, and the resulting run.
struct Way {
    text: String,
    options: EngineOptions,
}

impl Way {
    fn new(options: &EngineOptions) -> Self {
        Self {
            text: String::new(),
            options: options.clone(),
        }
    }

    fn and(mut self, text: impl AsRef<str>, change: impl FnOnce(&mut EngineOptions)) -> Self {
        if !self.text.is_empty() {
            self.text.push(' ');
        }
        self.text.push_str(text.as_ref());
        change(&mut self.options);
        self
    }

    fn with_disk(self) -> Self {
        self.and("`disk.folder=DIR`", |options| {
            options.cache.kv_tiers.disk = Some(DiskTier {
                folder: std::env::temp_dir(),
                budget_bytes: None,
            });
        })
    }

    fn with_batch(self, tokens: usize) -> Self {
        self.and(format!("`batch_tokens={tokens}`"), |options| {
            options.machine.batch_tokens = tokens;
            options.machine.chunk_tokens = options.machine.chunk_tokens.min(tokens);
        })
    }

    fn with_format(self, format: Format) -> Self {
        self.and(format!("`kv_type={}`", format.name()), |options| {
            (options.cache.key_format, options.cache.value_format) = (format, format);
        })
    }
}

/// Changes that would make a plan fit, and those among them that keep the context.
pub(super) fn suggest(planner: &Planner<'_>, options: &EngineOptions, plan: &MemoryPlan) -> (String, Vec<String>) {
    let mut found = Vec::new();
    if plan.largest_context_tokens >= LEAST_CONTEXT_TOKENS && options.sequence.window.is_none() {
        found.push(format!("`context_tokens={}` or less", plan.largest_context_tokens));
    }
    found.extend(short_context(planner, options, plan).map(|way| way.text));
    let ways = [
        budgets(planner, Way::new(options)),
        (options.cache.kv_tiers.disk.is_none())
            .then(|| budgets(planner, Way::new(options).with_disk()))
            .flatten(),
        formats(planner, options),
        batches(planner, options),
        slots(planner, options),
        memory(planner, options, plan),
    ];
    let beside: Vec<String> = ways.into_iter().flatten().map(|way| way.text).collect();
    found.extend(beside.iter().cloned());
    if found.is_empty() {
        found.extend(together(planner, options).map(|way| way.text));
    }
    let advice = if found.is_empty() {
        "use a smaller model or a machine with more memory".to_owned()
    } else {
        format!("use {}", found.join(", or "))
    };
    let advice = match plan.largest_context_tokens {
        0 => format!("not even one token fits: {advice}"),
        _ => advice,
    };
    (advice, beside)
}

fn fits(planner: &Planner<'_>, way: &Way) -> bool {
    planner.plan_only(&way.options).is_ok_and(|plan| plan.fits())
}

/// The change itself if it fits, otherwise with the budgets that the tiers need.
fn budgets(planner: &Planner<'_>, way: Way) -> Option<Way> {
    if fits(planner, &way) {
        return Some(way).filter(|way| !way.text.is_empty());
    }
    let plan = planner.plan_only(&way.options).ok()?;
    let tiers = &way.options.cache.kv_tiers;
    let near = tiers
        .ram_budget_bytes
        .map(|ram| ram.saturating_add(tiers.device_budget_bytes));
    let too_small = near.is_some_and(|near| near < plan.kv_tiers.least_near_bytes);
    // A given budget may exceed the available memory.
    let too_large = tiers.disk.is_some() && plan.total_bytes > plan.available_bytes;
    let mut way = way;
    if too_small || too_large {
        way = near_budget(planner, way)?;
    }
    if way
        .options
        .cache
        .kv_tiers
        .disk
        .as_ref()
        .is_some_and(|disk| disk.budget_bytes.is_some())
    {
        let needed = typed_bytes(planner.plan_only(&way.options).ok()?.kv_tiers.disk_bytes);
        let bytes = crate::parse_bytes("disk.budget_bytes", &needed).ok()?;
        way = way.and(format!("`disk.budget_bytes={needed}`"), |options| {
            if let Some(disk) = &mut options.cache.kv_tiers.disk {
                disk.budget_bytes = Some(bytes);
            }
        });
    }
    (!way.text.is_empty() && fits(planner, &way)).then_some(way)
}

/// The change with the smallest RAM budget of working tiers. The need of the tiers depends on what fits, so it is
/// computed again.
fn near_budget(planner: &Planner<'_>, way: Way) -> Option<Way> {
    let mut options = way.options.clone();
    for _ in 0..4 {
        let plan = planner.plan_only(&options).ok()?;
        let least = plan.kv_tiers.least_near_bytes;
        let beside = options.cache.kv_tiers.device_budget_bytes;
        let typed = typed_bytes(least.saturating_sub(beside));
        let bytes = crate::parse_bytes("ram_budget_bytes", &typed).ok()?;
        options.cache.kv_tiers.ram_budget_bytes = Some(bytes);
        let plan = planner.plan_only(&options).ok()?;
        if bytes.saturating_add(beside) >= plan.kv_tiers.least_near_bytes {
            return Some(way.and(format!("`ram_budget_bytes={typed}`"), |way| *way = options));
        }
    }
    None
}

/// A smaller format of keys and values, as close as possible to the requested one.
fn formats(planner: &Planner<'_>, options: &EngineOptions) -> Option<Way> {
    let bytes = |format: Format| format.plane_bytes(64, 64);
    let now = bytes(options.cache.key_format) + bytes(options.cache.value_format);
    let smaller = [Format::F16, Format::Q8_0, Format::Q4_0];
    let smaller = smaller.into_iter().filter(|format| 2 * bytes(*format) < now);
    let mut ways = smaller.map(|format| Way::new(options).with_format(format));
    ways.find(|way| fits(planner, way))
}

/// Shorter logical batches, the longest that fit.
fn batches(planner: &Planner<'_>, options: &EngineOptions) -> Option<Way> {
    let shorter = [2048, 1024, 512, 256, 128];
    let shorter = shorter
        .into_iter()
        .filter(|batch| *batch < options.machine.batch_tokens);
    let mut ways = shorter
        .filter(|_| options.sequence.window.is_none())
        .map(|batch| Way::new(options).with_batch(batch));
    ways.find(|way| fits(planner, way))
}

/// Fewer pages loading at a time.
fn slots(planner: &Planner<'_>, options: &EngineOptions) -> Option<Way> {
    let fewer = [16, 8, 4, 2].into_iter();
    let mut ways = fewer
        .filter(|slots| options.cache.kv_tiers.has_farther() && *slots < options.cache.kv_tiers.slots)
        .map(|slots| {
            let text = format!("`slots={slots}`");
            Way::new(options).and(text, |options| options.cache.kv_tiers.slots = slots)
        });
    ways.find(|way| fits(planner, way))
}

/// More memory, if it was limited.
fn memory(planner: &Planner<'_>, options: &EngineOptions, plan: &MemoryPlan) -> Option<Way> {
    options.machine.memory_budget_bytes?;
    let tiers = &plan.kv_tiers;
    let beside = plan.total_bytes.saturating_sub(tiers.device_bytes + tiers.ram_bytes);
    let needed = plan.total_bytes.max(beside.saturating_add(tiers.least_near_bytes));
    let typed = typed_bytes(needed);
    let bytes = crate::parse_bytes("memory_budget_bytes", &typed).ok()?;
    let way = Way::new(options).and(format!("`memory_budget_bytes={typed}`"), |options| {
        options.machine.memory_budget_bytes = Some(bytes);
    });
    let planner = Planner {
        available_bytes: bytes,
        ..*planner
    };
    fits(&planner, &way).then_some(way)
}

/// A short context with the memory that it needs, if there is no room for any.
fn short_context(planner: &Planner<'_>, options: &EngineOptions, plan: &MemoryPlan) -> Option<Way> {
    let is_long = plan.context_tokens > SHORT_CONTEXT_TOKENS && options.sequence.window.is_none();
    if plan.largest_context_tokens > 0 || !is_long {
        return None;
    }
    let text = format!("`context_tokens={SHORT_CONTEXT_TOKENS}`");
    let short = Way::new(options).and(text, |options| {
        options.model.context_tokens = Some(SHORT_CONTEXT_TOKENS)
    });
    let plan = planner.plan_only(&short.options).ok()?;
    let enough = memory(planner, &short.options, &plan)?;
    Some(short.and(enough.text, |options| *options = enough.options))
}

/// Several options, if no single one is enough.
fn together(planner: &Planner<'_>, options: &EngineOptions) -> Option<Way> {
    let formats = [Format::F16, Format::Q8_0, Format::Q4_0];
    let batches = [1024, 256, 64]
        .into_iter()
        .filter(|batch| *batch < options.machine.batch_tokens);
    let on_disk = batches.clone().filter_map(|batch| {
        let way = Way::new(options).with_disk().with_batch(batch);
        let way = way.and("`slots=4`", |options| options.cache.kv_tiers.slots = 4);
        budgets(planner, way)
    });
    let quantised =
        batches.flat_map(|batch| formats.map(|format| Way::new(options).with_batch(batch).with_format(format)));
    let shorter = quantised.filter_map(|way| {
        let plan = planner.plan_only(&way.options).ok()?;
        let tokens = plan.largest_context_tokens;
        (tokens >= LEAST_CONTEXT_TOKENS && options.sequence.window.is_none()).then(|| {
            way.and(format!("`context_tokens={tokens}`"), |options| {
                options.model.context_tokens = Some(tokens);
            })
        })
    });
    on_disk.chain(shorter).find(|way| fits(planner, way))
}
