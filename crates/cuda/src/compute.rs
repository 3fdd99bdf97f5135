//! A GPU as the engine's [`ComputeDevice`].

use std::ops::Range;
use std::sync::Arc;

use riffle_attention::{AttendOptions, Format, PageView, Partial};
use riffle_device::{
    AppendedTokens, BatchRows, ComputeDevice, DeviceError, DeviceQueue, HostRows, LayerPages, PageRoom, PagedTile,
    QueueTimer, RoomCall, RoomMass, RoomOptions, RoomScan, ScannedHead, SequenceId, SummaryKind, TransferCount,
};
use riffle_kv::HeadGrowth;
use riffle_model::{Decoder, ModelConfig, ModelError};

use crate::ops::{FEW_ROWS, PrefillChoice};
use crate::{
    DeviceForward, DeviceModel, DeviceRoom, DeviceRows, Event, Gpu, KeyScan, PagedCall, PagedMass, PinnedMemory,
    RoomBytes, Stream,
};

/// A model on a GPU, and the stream on which its work is queued.
struct QueuedModel {
    model: Arc<DeviceModel>,
    stream: Arc<Stream>,
}

/// Events at two points of a stream.
struct StreamTimer {
    stream: Arc<Stream>,
    start: Event,
    stop: Event,
}

impl ComputeDevice for Gpu {
    fn name(&self) -> &str {
        &self.info().name
    }

    fn products(&self) -> String {
        Gpu::products(self)
    }

    fn prefill_instructions(&self, head_dim: usize, formats: [Format; 2]) -> Result<String, DeviceError> {
        let [keys, values] = formats;
        Ok(PrefillChoice::choose(self, head_dim, keys, values)?.to_string())
    }

    fn few_rows(&self) -> usize {
        FEW_ROWS
    }

    fn free_bytes(&self) -> Result<u64, DeviceError> {
        Ok(Gpu::free_bytes(self)? as u64)
    }

    fn forward_bytes(&self, config: &ModelConfig, batch_tokens: usize) -> u64 {
        crate::forward_bytes(config, batch_tokens)
    }

    fn least_room_bytes(&self, room: &RoomOptions) -> u64 {
        room.least_bytes()
    }

    fn room_bytes_for(&self, room: &RoomOptions, tokens: usize) -> u64 {
        room.bytes_for(tokens)
    }

    fn call_bytes(&self, room: &RoomOptions, rows: usize, added: usize, tokens: usize) -> u64 {
        RoomBytes::call_bytes(room, rows, added, tokens)
    }

    fn pinned_memory(&self) -> Arc<dyn riffle_kv::Device> {
        Arc::new(PinnedMemory::new(self))
    }

    fn queue(&self) -> Result<Arc<dyn DeviceQueue>, DeviceError> {
        Ok(Arc::new(self.stream()?))
    }
}

impl DeviceQueue for Stream {
    fn upload(self: Arc<Self>, decoder: Decoder) -> Result<Box<dyn riffle_device::DeviceModel>, DeviceError> {
        let model = Arc::new(DeviceModel::upload(self.gpu(), decoder)?);
        Ok(Box::new(QueuedModel { model, stream: self }))
    }

    fn room(self: Arc<Self>, options: RoomOptions) -> Result<Box<dyn PageRoom>, DeviceError> {
        Ok(Box::new(DeviceRoom::new(&self, options)?))
    }

    fn rows(
        self: Arc<Self>,
        tokens: usize,
        head_dim: usize,
        layer: [&[f32]; 3],
    ) -> Result<Box<dyn riffle_device::DeviceRows>, DeviceError> {
        Ok(Box::new(DeviceRows::of_layer(&self, tokens, head_dim, layer)?))
    }

    fn attended(&self, rows: &dyn riffle_device::DeviceRows, range: Range<usize>) -> Result<Vec<f32>, DeviceError> {
        let attended = DeviceRows::downcast(rows)?.call(range).attended;
        Ok(self.gpu().download(attended, self)?)
    }

    fn timer(self: Arc<Self>) -> Result<Box<dyn QueueTimer>, DeviceError> {
        let (start, stop) = (self.gpu().event()?, self.gpu().event()?);
        Ok(Box::new(StreamTimer {
            stream: self,
            start,
            stop,
        }))
    }
}

impl QueueTimer for StreamTimer {
    fn start(&self) -> Result<(), DeviceError> {
        Ok(self.stream.record(&self.start)?)
    }

    fn stop(&self) -> Result<(), DeviceError> {
        Ok(self.stream.record(&self.stop)?)
    }

    fn elapsed_ms(&self) -> Result<f64, DeviceError> {
        self.stop.synchronize()?;
        Ok(f64::from(self.stop.elapsed_ms_since(&self.start)?))
    }
}

impl riffle_device::DeviceModel for QueuedModel {
    fn forward(&self, batch_tokens: usize) -> Result<Box<dyn riffle_device::DeviceForward>, DeviceError> {
        let forward = DeviceForward::new(&self.model, &self.stream, batch_tokens)?;
        Ok(Box::new(forward))
    }
}

impl riffle_device::DeviceForward for DeviceForward {
    fn rows(&self) -> &dyn riffle_device::DeviceRows {
        DeviceForward::rows(self)
    }

    fn project_rows(&mut self, layer: usize, rows: Range<usize>) -> Result<bool, ModelError> {
        DeviceForward::project_rows(self, layer, rows)
    }

    fn bring_queries(&mut self, rows: Range<usize>) -> Result<(), DeviceError> {
        Ok(DeviceForward::bring_queries(self, rows)?)
    }

    fn host_rows(&mut self) -> HostRows<'_> {
        DeviceForward::host_rows(self)
    }

    fn send_attended(&mut self, rows: Range<usize>) -> Result<(), DeviceError> {
        Ok(DeviceForward::send_attended(self, rows)?)
    }
}

impl riffle_device::DeviceRows for DeviceRows {
    fn rotate_queries(&self, rows: Range<usize>) -> Result<(), DeviceError> {
        Ok(DeviceRows::rotate_queries(self, rows)?)
    }

    fn rotate_attended(&self, rows: Range<usize>) -> Result<(), DeviceError> {
        Ok(DeviceRows::rotate_attended(self, rows)?)
    }
}

impl PageRoom for DeviceRoom {
    fn begin_sequence(&mut self) -> SequenceId {
        DeviceRoom::begin_sequence(self)
    }

    fn fork(&mut self, sequence: SequenceId) -> SequenceId {
        DeviceRoom::fork(self, sequence)
    }

    fn end_sequence(&mut self, sequence: SequenceId) {
        DeviceRoom::end_sequence(self, sequence);
    }

    fn truncate(&mut self, sequence: SequenceId, tokens: usize) {
        DeviceRoom::truncate(self, sequence, tokens);
    }

    fn truncate_head(&mut self, sequence: SequenceId, layer: usize, kv_head: usize, tokens: usize) {
        DeviceRoom::truncate_head(self, sequence, layer, kv_head, tokens);
    }

    fn clear(&mut self) {
        DeviceRoom::clear(self);
    }

    fn resident_bytes_of(&self, sequence: SequenceId) -> u64 {
        DeviceRoom::resident_bytes_of(self, sequence)
    }

    fn transferred(&self) -> TransferCount {
        DeviceRoom::transferred(self)
    }

    fn append(
        &mut self,
        new: &AppendedTokens<'_>,
        tokens: Range<usize>,
        heads: &[HeadGrowth],
    ) -> Result<Vec<PageView<'_>>, DeviceError> {
        Ok(DeviceRoom::append(self, new, tokens, heads)?)
    }

    fn begin<'p>(
        &'p mut self,
        of: LayerPages<'p>,
        tiles: &'p [PagedTile<'p>],
        rows: &BatchRows<'p>,
        end: usize,
        options: &AttendOptions<'_>,
    ) -> Result<Box<dyn RoomCall + 'p>, DeviceError> {
        let rows = DeviceRows::downcast(rows.rows)?.call(rows.range.clone());
        Ok(Box::new(DeviceRoom::begin(self, of, tiles, rows, end, options)?))
    }

    fn bring_partials(
        &mut self,
        tiles: &[PagedTile<'_>],
        rows: &BatchRows<'_>,
        partials: &mut [Partial],
    ) -> Result<(), DeviceError> {
        let rows = DeviceRows::downcast(rows.rows)?.call(rows.range.clone());
        Ok(DeviceRoom::bring_partials(self, tiles, &rows, partials)?)
    }

    fn set_log_sum_exp(&mut self, rows: &BatchRows<'_>, log_sum_exp: &[f32]) -> Result<(), DeviceError> {
        let rows = DeviceRows::downcast(rows.rows)?.call(rows.range.clone());
        Ok(DeviceRoom::set_log_sum_exp(self, &rows, log_sum_exp)?)
    }

    fn begin_mass<'p>(
        &'p mut self,
        of: LayerPages<'p>,
        tiles: &[PagedTile<'_>],
        rows: &BatchRows<'p>,
        end: usize,
        options: &AttendOptions<'_>,
    ) -> Result<Box<dyn RoomMass + 'p>, DeviceError> {
        let rows = DeviceRows::downcast(rows.rows)?.call(rows.range.clone());
        Ok(Box::new(DeviceRoom::begin_mass(self, of, tiles, rows, end, options)?))
    }

    fn scan_keys<'p>(
        &'p mut self,
        of: LayerPages<'p>,
        shown: &[Vec<PageView<'_>>],
        queries: &BatchRows<'p>,
    ) -> Result<Option<Box<dyn RoomScan + 'p>>, DeviceError> {
        let queries = DeviceRows::downcast(queries.rows)?.queries(queries.range.clone());
        let scan = DeviceRoom::scan_keys(self, of, shown, queries)?;
        Ok(scan.map(|scan| Box::new(scan) as Box<dyn RoomScan + 'p>))
    }

    fn have_summaries_room(&self, kind: SummaryKind, block: usize, tokens: usize) -> bool {
        DeviceRoom::have_summaries_room(self, kind, block, tokens)
    }

    fn summaries_known(
        &mut self,
        kind: SummaryKind,
        of: LayerPages<'_>,
        block: usize,
        tokens: usize,
    ) -> Result<Option<Vec<usize>>, DeviceError> {
        Ok(DeviceRoom::summaries_known(self, kind, of, block, tokens)?)
    }

    fn extend_summaries(
        &mut self,
        kind: SummaryKind,
        of: LayerPages<'_>,
        shown: &[Vec<PageView<'_>>],
    ) -> Result<(), DeviceError> {
        Ok(DeviceRoom::extend_summaries(self, kind, of, shown)?)
    }

    fn bound_scores(
        &mut self,
        of: LayerPages<'_>,
        queries: &BatchRows<'_>,
        tokens: &[usize],
    ) -> Result<Vec<Vec<f32>>, DeviceError> {
        let queries = DeviceRows::downcast(queries.rows)?.queries(queries.range.clone());
        Ok(DeviceRoom::bound_scores(self, of, queries, tokens)?)
    }

    fn expected(&self, of: LayerPages<'_>) -> Vec<(usize, usize)> {
        DeviceRoom::expected(self, of)
    }

    fn read_ahead(&mut self, of: LayerPages<'_>, shown: &[(usize, PageView<'_>)]) -> Result<(), DeviceError> {
        Ok(DeviceRoom::read_ahead(self, of, shown)?)
    }
}

impl RoomCall for PagedCall<'_> {
    fn include_means(&mut self) {
        PagedCall::include_means(self);
    }

    fn attend(&mut self, shown: &[Vec<PageView<'_>>]) -> Result<(), DeviceError> {
        Ok(PagedCall::attend(self, shown)?)
    }

    fn finish(self: Box<Self>) -> Result<(), DeviceError> {
        Ok(PagedCall::finish(*self)?)
    }
}

impl RoomMass for PagedMass<'_> {
    fn add(&mut self, shown: &[Vec<PageView<'_>>]) -> Result<(), DeviceError> {
        Ok(PagedMass::add(self, shown)?)
    }

    fn finish(self: Box<Self>) -> Result<Vec<Vec<f32>>, DeviceError> {
        Ok(PagedMass::finish(*self)?)
    }
}

impl RoomScan for KeyScan<'_> {
    fn blocks(
        &mut self,
        head: &ScannedHead,
        stride: usize,
        block: usize,
    ) -> Result<Option<Vec<Vec<f32>>>, DeviceError> {
        Ok(KeyScan::blocks(self, head, stride, block)?)
    }

    fn lines(&mut self, head: &ScannedHead, queries: usize) -> Result<Option<[Vec<f32>; 2]>, DeviceError> {
        Ok(KeyScan::lines(self, head, queries)?)
    }
}
