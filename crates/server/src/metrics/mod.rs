//! Metrics for monitoring at `/metrics`, with vLLM's names where they exist.

mod refusals;
mod text;

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use riffle_engine::{Engine, Scheduler, SharedCounts, StopReason};
use riffle_events::PublisherCounts;
use serde_json::{Value, json};

use crate::driver::Finished;
pub(crate) use refusals::Refusals;
pub(crate) use text::merged;
use text::text_of;

/// A pause between two tokens that counts as a stall.
const STALL_S: f64 = 1.0;

/// All counters and gauges.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    running: Gauge,
    waiting: Gauge,
    idle: Gauge,
    kv_usage: Gauge<f64, AtomicU64>,
    kv_bytes: Family<Tier, Gauge>,
    kv_pages: Gauge,
    cache_config: Family<CacheConfig, Gauge>,
    prompt_tokens: Counter,
    written_tokens: Counter,
    cached_tokens: Counter,
    drafted_tokens: Counter,
    accepted_tokens: Counter,
    queried_tokens: Counter,
    pairs_read: Counter,
    pairs_causal: Counter,
    kept_mass: Gauge<f64, AtomicU64>,
    stalls: Counter,
    shared_blocks: Family<SharedBlock, Counter>,
    shared_bytes: Family<SharedBlock, Counter>,
    experts: Family<ChosenExpert, Counter>,
    expert_bytes: Counter,
    shared_failures: Counter,
    shared_queued_bytes: Gauge,
    shared_paused: Gauge,
    event_batches: Counter,
    dropped_events: Counter,
    event_replays: Counter,
    ended: Family<Ended, Counter>,
    loads: Counter,
    load_s: Histogram,
    first_token_s: Histogram,
    next_token_s: Histogram,
    request_s: Histogram,
    waited_s: Histogram,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Tier {
    tier: &'static str,
}

/// Configuration of the cache, with vLLM's names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CacheConfig {
    block_size: u64,
    num_gpu_blocks: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    finished_reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SharedBlock {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ChosenExpert {
    found: &'static str,
}

impl Metrics {
    /// Counters of one model. With several models each sample has its `model` as a label.
    pub(crate) fn new(model: Option<&str>) -> Self {
        let label = model.map(|name| (Cow::Borrowed("model"), Cow::Owned(name.to_owned())));
        let seconds = |bounds: &[f64]| Histogram::new(bounds.iter().copied());
        let long = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];
        let short = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];
        let mut metrics = Self {
            registry: Registry::with_labels(label.into_iter()),
            running: Gauge::default(),
            waiting: Gauge::default(),
            idle: Gauge::default(),
            kv_usage: Gauge::default(),
            kv_bytes: Family::default(),
            kv_pages: Gauge::default(),
            cache_config: Family::default(),
            prompt_tokens: Counter::default(),
            written_tokens: Counter::default(),
            cached_tokens: Counter::default(),
            drafted_tokens: Counter::default(),
            accepted_tokens: Counter::default(),
            queried_tokens: Counter::default(),
            pairs_read: Counter::default(),
            pairs_causal: Counter::default(),
            kept_mass: Gauge::default(),
            stalls: Counter::default(),
            shared_blocks: Family::default(),
            shared_bytes: Family::default(),
            experts: Family::default(),
            expert_bytes: Counter::default(),
            shared_failures: Counter::default(),
            shared_queued_bytes: Gauge::default(),
            shared_paused: Gauge::default(),
            event_batches: Counter::default(),
            dropped_events: Counter::default(),
            event_replays: Counter::default(),
            ended: Family::default(),
            loads: Counter::default(),
            load_s: seconds(&long),
            first_token_s: seconds(&long),
            next_token_s: seconds(&short),
            request_s: seconds(&long),
            waited_s: seconds(&long),
        };
        metrics.register();
        if model.is_some() {
            metrics.register_loads();
        }
        metrics
    }

    fn register_loads(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "riffle:model_loads",
            "Times that the model was loaded",
            self.loads.clone(),
        );
        registry.register(
            "riffle:model_load_seconds",
            "Time that it took to load the model",
            self.load_s.clone(),
        );
    }

    fn register(&mut self) {
        self.register_gauges();
        self.register_counters();
        self.register_event_counters();
        self.register_histograms();
        self.register_shared();
        self.registry.register(
            "riffle:chosen_experts",
            "Experts that tokens chose, of models whose experts stay in the files, by where they were found",
            self.experts.clone(),
        );
        self.registry.register(
            "riffle:expert_bytes_read",
            "Bytes of experts that were read from the model's files",
            self.expert_bytes.clone(),
        );
    }

    fn register_shared(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "riffle:shared_blocks",
            "Parts of blocks, and notes, of the shared store by what became of them",
            self.shared_blocks.clone(),
        );
        registry.register(
            "riffle:shared_bytes",
            "Bytes that were fetched from the shared store and published to it",
            self.shared_bytes.clone(),
        );
        registry.register(
            "riffle:shared_failures",
            "Operations of the shared store that failed or took too long",
            self.shared_failures.clone(),
        );
        registry.register(
            "riffle:shared_queued_bytes",
            "Bytes of pages that wait to be written to the shared store",
            self.shared_queued_bytes.clone(),
        );
        registry.register(
            "riffle:shared_paused",
            "Whether the shared store is left alone because it failed",
            self.shared_paused.clone(),
        );
    }

    fn register_counters(&mut self) {
        let registry = &mut self.registry;
        let counters = [
            (
                "vllm:prompt_tokens",
                "Tokens of prompts that were answered",
                &self.prompt_tokens,
            ),
            ("vllm:generation_tokens", "Tokens written", &self.written_tokens),
            (
                "vllm:prefix_cache_queries",
                "Tokens of prompts that were looked for among what had been read",
                &self.queried_tokens,
            ),
            (
                "vllm:prefix_cache_hits",
                "Tokens of prompts that had been read before",
                &self.cached_tokens,
            ),
            (
                "vllm:spec_decode_num_draft_tokens",
                "Tokens that were drafted",
                &self.drafted_tokens,
            ),
            (
                "vllm:spec_decode_num_accepted_tokens",
                "Drafted tokens that answers drew",
                &self.accepted_tokens,
            ),
            (
                "riffle:attention_pairs_read",
                "Pairs of query and key that attention has read",
                &self.pairs_read,
            ),
            (
                "riffle:attention_pairs_causal",
                "Pairs of query and key that dense attention would have read",
                &self.pairs_causal,
            ),
            (
                "riffle:stalls",
                "Pauses of over a second between two tokens of an answer",
                &self.stalls,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        registry.register("vllm:request_success", "Requests by how they ended", self.ended.clone());
    }

    fn register_event_counters(&mut self) {
        let counters = [
            (
                "riffle:kv_event_batches",
                "Batches of KV events that were published",
                &self.event_batches,
            ),
            (
                "riffle:kv_events_dropped",
                "KV events of batches that found no place; the next batch tells everything anew",
                &self.dropped_events,
            ),
            (
                "riffle:kv_event_replays",
                "Replays of KV events that were asked for",
                &self.event_replays,
            ),
        ];
        for (name, help, counter) in counters {
            self.registry.register(name, help, counter.clone());
        }
    }

    fn register_histograms(&mut self) {
        let registry = &mut self.registry;
        let histograms = [
            (
                "vllm:time_to_first_token_seconds",
                "From a request's arrival to its first token",
                &self.first_token_s,
            ),
            (
                "vllm:inter_token_latency_seconds",
                "From one token of an answer to the next",
                &self.next_token_s,
            ),
            (
                "vllm:e2e_request_latency_seconds",
                "From a request's arrival to the end of its answer",
                &self.request_s,
            ),
            (
                "vllm:request_queue_time_seconds",
                "From a request's arrival until it has a place",
                &self.waited_s,
            ),
        ];
        for (name, help, histogram) in histograms {
            registry.register(name, help, histogram.clone());
        }
    }

    fn register_gauges(&mut self) {
        let registry = &mut self.registry;
        let gauges = [
            (
                "vllm:num_requests_running",
                "Requests that read or answer",
                &self.running,
            ),
            ("vllm:num_requests_waiting", "Requests without a place", &self.waiting),
            (
                "riffle:idle_sequences",
                "Sequences kept for whoever asks next",
                &self.idle,
            ),
            ("riffle:kv_pages", "Pages of the KV cache in use", &self.kv_pages),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        registry.register(
            "vllm:kv_cache_usage_perc",
            "Share of the KV cache in use, from 0 to 1",
            self.kv_usage.clone(),
        );
        registry.register(
            "vllm:cache_config_info",
            "Tokens of a block, and blocks that all requests together may hold",
            self.cache_config.clone(),
        );
        registry.register(
            "riffle:kv_bytes",
            "Bytes of the KV cache by where they lie",
            self.kv_bytes.clone(),
        );
        registry.register(
            "riffle:kept_mass",
            "Mean share of the true attention that the latest audited request kept",
            self.kept_mass.clone(),
        );
    }

    /// Sets the gauges of an engine's plan.
    pub(crate) fn describe(&self, engine: &Engine) {
        let options = engine.options();
        let tokens = options.cache.pool_tokens.unwrap_or(engine.plan().context_tokens);
        let config = CacheConfig {
            block_size: options.cache.page_tokens as u64,
            num_gpu_blocks: (tokens / options.cache.page_tokens) as u64,
        };
        self.cache_config.get_or_create(&config).set(1);
    }

    /// Sets the gauges of the scheduler.
    pub(crate) fn observe(&self, scheduler: &Scheduler) {
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let bytes = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let pool = scheduler.pool();
        self.running.set(count(scheduler.running()));
        self.waiting.set(count(scheduler.waiting()));
        self.idle.set(count(scheduler.idle()));
        self.kv_pages.set(count(pool.pages()));
        let tiers = [("ram", pool.near_bytes()), ("disk", pool.file_bytes())];
        for (tier, held) in tiers {
            self.kv_bytes.get_or_create(&Tier { tier }).set(bytes(held));
        }
        let used = pool.pages_bytes() as f64;
        let most = scheduler.engine().plan().kv_bytes as f64;
        self.kv_usage.set(if most > 0.0 { (used / most).min(1.0) } else { 0.0 });
        if let Some(counts) = scheduler.shared_counts() {
            self.observe_shared(&counts);
        }
        if let Some(counts) = scheduler.engine().expert_statistics() {
            let found = [
                ("memory", counts.hits),
                ("early", counts.early),
                ("disk", counts.misses),
            ];
            for (found, count) in found {
                set(&self.experts.get_or_create(&ChosenExpert { found }), count);
            }
            set(&self.expert_bytes, counts.read_bytes);
        }
    }

    fn observe_shared(&self, counts: &SharedCounts) {
        let blocks = [
            ("fetched", counts.fetched),
            ("published", counts.published),
            ("already_there", counts.already_there),
            ("bad", counts.bad_blocks),
            ("dropped", counts.dropped),
        ];
        for (outcome, count) in blocks {
            set(&self.shared_blocks.get_or_create(&SharedBlock { outcome }), count);
        }
        for (outcome, bytes) in [("fetched", counts.fetched_bytes), ("published", counts.published_bytes)] {
            set(&self.shared_bytes.get_or_create(&SharedBlock { outcome }), bytes);
        }
        set(&self.shared_failures, counts.failures);
        self.shared_queued_bytes
            .set(i64::try_from(counts.queued_bytes).unwrap_or(i64::MAX));
        self.shared_paused.set(i64::from(counts.is_paused));
    }

    pub(crate) fn count_events(&self, before: &PublisherCounts, now: &PublisherCounts) {
        self.event_batches.inc_by(now.batches - before.batches);
        self.dropped_events.inc_by(now.dropped_events - before.dropped_events);
        self.event_replays.inc_by(now.replays - before.replays);
    }

    /// Number of running requests.
    pub(crate) fn running(&self) -> usize {
        usize::try_from(self.running.get()).unwrap_or(0)
    }

    pub(crate) fn count_token(&self, gap_s: f64, is_first: bool) {
        self.written_tokens.inc();
        if is_first {
            self.first_token_s.observe(gap_s)
        } else {
            self.next_token_s.observe(gap_s);
            if gap_s > STALL_S {
                self.stalls.inc();
            }
        }
    }

    pub(crate) fn count_finished(&self, finished: &Finished, age_s: f64) {
        let report = &finished.report;
        self.prompt_tokens.inc_by(report.prompt_tokens as u64);
        self.queried_tokens.inc_by(report.prompt_tokens as u64);
        self.cached_tokens.inc_by(report.reused_tokens as u64);
        self.drafted_tokens.inc_by(report.generation.drafts.drafted as u64);
        self.accepted_tokens.inc_by(report.generation.drafts.accepted as u64);
        self.pairs_read.inc_by(finished.pairs.read);
        self.pairs_causal.inc_by(finished.pairs.causal);
        self.request_s.observe(age_s);
        self.waited_s.observe(report.times.waited_s);
        if let Some(audit) = &finished.audit {
            self.kept_mass.set(audit.mean_mass);
        }
        self.count_end(match report.generation.stop {
            StopReason::MaxTokens | StopReason::ContextFull => "length",
            StopReason::Interrupted => "abort",
            StopReason::EndOfText | StopReason::StopString(_) | StopReason::Loop { .. } => "stop",
        });
    }

    pub(crate) fn count_end(&self, finished_reason: &'static str) {
        self.ended.get_or_create(&Ended { finished_reason }).inc();
    }

    /// Counts a load of the model.
    pub(crate) fn count_load(&self, seconds: f64) {
        self.loads.inc();
        self.load_s.observe(seconds);
    }

    /// Clears the gauges of an unloaded model.
    pub(crate) fn clear_gauges(&self) {
        for gauge in [&self.running, &self.waiting, &self.idle, &self.kv_pages] {
            gauge.set(0);
        }
        for tier in ["ram", "disk"] {
            self.kv_bytes.get_or_create(&Tier { tier }).set(0);
        }
        self.kv_usage.set(0.0);
    }

    /// The text for Prometheus.
    pub(crate) fn text(&self) -> String {
        text_of(&self.registry)
    }

    /// Metrics that the web page shows.
    pub(crate) fn summary(&self) -> Value {
        let bytes = |tier| self.kv_bytes.get_or_create(&Tier { tier }).get();
        let load = |gauge: &Gauge<f64, AtomicU64>| gauge.get();
        json!({
            "running": self.running.get(),
            "waiting": self.waiting.get(),
            "idle": self.idle.get(),
            "kv_pages": self.kv_pages.get(),
            "kv_ram_bytes": bytes("ram"),
            "kv_disk_bytes": bytes("disk"),
            "kv_usage": load(&self.kv_usage),
        })
    }
}

/// Sets a counter to a value counted elsewhere; it never decreases.
fn set(counter: &Counter, count: u64) {
    counter.inner().fetch_max(count, Ordering::Relaxed);
}
