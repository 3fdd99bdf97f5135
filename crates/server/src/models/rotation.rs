//! Decides which model is loaded next, and which one is unloaded: plain data and one pure function.

use std::time::{Duration, Instant};

/// The stage of a model between disk and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The model is only on disk.
    Absent,
    Loading,
    Loaded,
    /// The model is unloading, and its memory is not yet free.
    Leaving,
}

/// A model in the rotation.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    /// Bytes of the model from the start of loading to the end of unloading.
    pub(super) bytes: u64,
    pub(super) stage: Stage,
    /// Number of requests that use the model.
    pub(super) uses: usize,
    /// Number of requests that wait for the model.
    pub(super) waiting: usize,
    /// Turn of the first of these requests.
    waits_since: u64,
    /// Turn of the model's latest use.
    used: u64,
    /// Time that the model stays after its last use; `None` until its memory is needed.
    pub(super) keep: Option<Duration>,
    /// Time of the unloading if the model is not used again.
    pub(super) expires: Option<Instant>,
    /// True if the model accepts no further request, because its memory is needed.
    pub(super) is_draining: bool,
    /// True if the model failed and must be loaded again.
    pub(super) is_broken: bool,
    /// True if the model is never unloaded.
    pub(super) stays: bool,
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Load(usize),
    Leave(usize),
    /// Wait for a change, or until this time.
    Wait(Option<Instant>),
}

/// Source of memory for a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    /// Unloading this idle model frees the memory.
    Leaves(usize),
    /// Models in use have the memory, and must finish their answers first.
    InUse,
    /// Models that are already loading or unloading will free the memory.
    Coming,
}

/// All models of a server.
#[derive(Debug)]
pub(super) struct Rotation {
    pub(super) slots: Vec<Slot>,
    room_bytes: u64,
    turn: u64,
}

impl Slot {
    pub(super) fn new(bytes: u64) -> Self {
        Self {
            bytes,
            stage: Stage::Absent,
            uses: 0,
            waiting: 0,
            waits_since: 0,
            used: 0,
            keep: None,
            expires: None,
            is_draining: false,
            is_broken: false,
            stays: false,
        }
    }

    /// A loaded model that is never unloaded.
    pub(super) fn resident() -> Self {
        Self {
            stage: Stage::Loaded,
            stays: true,
            ..Self::new(0)
        }
    }

    /// True if a request may use the model now.
    pub(super) fn is_open(&self) -> bool {
        self.stage == Stage::Loaded && !self.is_draining && !self.is_broken
    }

    fn is_expired(&self, now: Instant) -> bool {
        let is_old = self.waiting == 0 && self.expires.is_some_and(|expires| expires <= now);
        self.stage == Stage::Loaded && !self.stays && self.uses == 0 && (self.is_broken || is_old)
    }
}

impl Rotation {
    pub(super) fn new(slots: Vec<Slot>, room_bytes: u64) -> Self {
        Self {
            slots,
            room_bytes,
            turn: 0,
        }
    }

    /// Counts a request that waits for a model.
    pub(super) fn begin_waiting(&mut self, index: usize) {
        self.turn += 1;
        let slot = &mut self.slots[index];
        if slot.waiting == 0 {
            slot.waits_since = self.turn;
        }
        slot.waiting += 1;
    }

    /// Counts a request that uses a model. The model then stays for `keep` after its last use.
    pub(super) fn begin_use(&mut self, index: usize, keep: Option<Duration>) {
        self.turn += 1;
        let slot = &mut self.slots[index];
        slot.uses += 1;
        slot.used = self.turn;
        slot.keep = keep;
        slot.expires = None;
    }

    /// Ends a use of a model.
    pub(super) fn end_use(&mut self, index: usize, now: Instant) {
        self.turn += 1;
        let slot = &mut self.slots[index];
        slot.uses -= 1;
        slot.used = self.turn;
        if slot.uses == 0 {
            slot.expires = slot.keep.and_then(|keep| now.checked_add(keep));
        }
    }

    /// The next step, with the model's stage already set. Expired models are unloaded. Of the requested models, the one
    /// with the longest wait is loaded. If it does not fit, the least recently used models make room, idle ones before
    /// those in use; one in use accepts no more requests until it is idle. Meanwhile other models that fit are loaded.
    pub(super) fn step(&mut self, now: Instant) -> Step {
        for slot in &mut self.slots {
            slot.is_draining = false;
        }
        if let Some(index) = self.slots.iter().position(|slot| slot.is_expired(now)) {
            return self.leave(index);
        }
        let is_wanted = |index: &usize| self.slots[*index].waiting > 0 && self.slots[*index].stage == Stage::Absent;
        let mut wanted: Vec<usize> = (0..self.slots.len()).filter(is_wanted).collect();
        wanted.sort_by_key(|index| self.slots[*index].waits_since);
        let free = self.free_bytes();
        let fits = |index: &usize, slots: &[Slot]| slots[*index].bytes <= free;
        if let Some(first) = wanted.first().copied() {
            if fits(&first, &self.slots) {
                return self.load(first);
            }
            match self.make_room(self.slots[first].bytes) {
                Room::Leaves(index) => return self.leave(index),
                Room::InUse => {
                    if let Some(index) = wanted.into_iter().find(|index| fits(index, &self.slots)) {
                        return self.load(index);
                    }
                }
                Room::Coming => {}
            }
        }
        let idle = |slot: &&Slot| slot.stage == Stage::Loaded && slot.uses == 0 && !slot.stays;
        let idle = self.slots.iter().filter(idle);
        Step::Wait(idle.filter_map(|slot| slot.expires).min())
    }

    /// Free bytes.
    fn free_bytes(&self) -> u64 {
        let taken = self.slots.iter().filter(|slot| slot.stage != Stage::Absent);
        let taken = taken.map(|slot| slot.bytes).fold(0, u64::saturating_add);
        self.room_bytes.saturating_sub(taken)
    }

    /// Selects the models to unload for `bytes`. Models in use are drained first, and idle ones are unloaded only
    /// when all of the selected are idle.
    fn make_room(&mut self, bytes: u64) -> Room {
        let is_going = |slot: &&Slot| slot.stage == Stage::Leaving;
        let going = self.slots.iter().filter(is_going).map(|slot| slot.bytes);
        let mut coming = going.fold(self.free_bytes(), u64::saturating_add);
        let may_leave = |index: &usize| self.slots[*index].stage == Stage::Loaded && !self.slots[*index].stays;
        let mut loaded: Vec<usize> = (0..self.slots.len()).filter(may_leave).collect();
        loaded.sort_by_key(|index| (self.slots[*index].uses > 0, self.slots[*index].used));
        let mut room = Room::Coming;
        for index in loaded {
            if coming >= bytes {
                break;
            }
            let slot = &mut self.slots[index];
            coming = coming.saturating_add(slot.bytes);
            if slot.uses > 0 {
                slot.is_draining = true;
                room = Room::InUse;
            } else if room == Room::Coming {
                room = Room::Leaves(index);
            }
        }
        room
    }

    fn load(&mut self, index: usize) -> Step {
        self.slots[index].stage = Stage::Loading;
        Step::Load(index)
    }

    fn leave(&mut self, index: usize) -> Step {
        self.slots[index].stage = Stage::Leaving;
        Step::Leave(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Models of these sizes in a room of 10 bytes.
    fn rotation(bytes: &[u64]) -> Rotation {
        Rotation::new(bytes.iter().map(|bytes| Slot::new(*bytes)).collect(), 10)
    }

    fn load(rotation: &mut Rotation, index: usize) {
        rotation.begin_waiting(index);
        assert_eq!(rotation.step(Instant::now()), Step::Load(index));
        let slot = &mut rotation.slots[index];
        (slot.stage, slot.waiting) = (Stage::Loaded, 0);
    }

    fn use_once(rotation: &mut Rotation, index: usize) {
        rotation.begin_use(index, None);
        rotation.end_use(index, Instant::now());
    }

    #[test]
    fn the_model_used_longest_ago_leaves_where_there_is_no_room() {
        let mut rotation = rotation(&[4, 4, 4]);
        load(&mut rotation, 0);
        load(&mut rotation, 1);
        use_once(&mut rotation, 1);
        use_once(&mut rotation, 0);
        rotation.begin_waiting(2);
        assert_eq!(rotation.step(Instant::now()), Step::Leave(1));
        // The leaving model's memory is not free yet, and no other model must be unloaded.
        assert_eq!(rotation.step(Instant::now()), Step::Wait(None));
        rotation.slots[1].stage = Stage::Absent;
        assert_eq!(rotation.step(Instant::now()), Step::Load(2));
    }

    #[test]
    fn a_model_in_use_takes_no_further_request_until_it_is_idle_and_none_leaves_before() {
        let mut rotation = rotation(&[3, 6, 10]);
        load(&mut rotation, 0);
        load(&mut rotation, 1);
        rotation.begin_use(1, None);
        rotation.begin_waiting(2);
        assert_eq!(rotation.step(Instant::now()), Step::Wait(None));
        assert!(rotation.slots[0].is_open() && !rotation.slots[1].is_open());
        // The waiting requests are gone.
        rotation.slots[2].waiting = 0;
        assert_eq!(rotation.step(Instant::now()), Step::Wait(None));
        assert!(rotation.slots[1].is_open());
        rotation.begin_waiting(2);
        rotation.step(Instant::now());
        rotation.end_use(1, Instant::now());
        assert_eq!(rotation.step(Instant::now()), Step::Leave(0));
        assert_eq!(rotation.step(Instant::now()), Step::Leave(1));
    }

    #[test]
    fn a_small_model_does_not_wait_for_a_large_one() {
        let mut rotation = rotation(&[8, 8, 2]);
        load(&mut rotation, 0);
        rotation.begin_use(0, None);
        rotation.begin_waiting(1);
        rotation.begin_waiting(2);
        assert_eq!(rotation.step(Instant::now()), Step::Load(2));
    }

    #[test]
    fn room_that_a_model_gets_is_not_given_to_others_that_came_later() {
        let mut rotation = rotation(&[8, 8, 2]);
        load(&mut rotation, 0);
        rotation.begin_waiting(1);
        assert_eq!(rotation.step(Instant::now()), Step::Leave(0));
        rotation.begin_waiting(2);
        assert_eq!(rotation.step(Instant::now()), Step::Wait(None));
        rotation.slots[0].stage = Stage::Absent;
        assert_eq!(rotation.step(Instant::now()), Step::Load(1));
        assert_eq!(rotation.step(Instant::now()), Step::Load(2));
    }

    #[test]
    fn models_take_turns_where_both_are_always_asked_for() {
        let mut rotation = rotation(&[8, 8]);
        load(&mut rotation, 0);
        rotation.begin_use(0, None);
        rotation.begin_waiting(1);
        rotation.step(Instant::now());
        rotation.begin_waiting(0);
        rotation.end_use(0, Instant::now());
        assert_eq!(rotation.step(Instant::now()), Step::Leave(0));
        rotation.slots[0].stage = Stage::Absent;
        assert_eq!(rotation.step(Instant::now()), Step::Load(1));
    }

    #[test]
    fn a_model_leaves_when_its_time_is_over_and_it_is_idle() {
        let mut rotation = rotation(&[4]);
        load(&mut rotation, 0);
        let now = Instant::now();
        rotation.begin_use(0, Some(Duration::from_secs(60)));
        assert_eq!(rotation.step(now), Step::Wait(None));
        rotation.end_use(0, now);
        let end = now + Duration::from_secs(60);
        assert_eq!(rotation.step(now), Step::Wait(Some(end)));
        rotation.begin_use(0, Some(Duration::ZERO));
        assert_eq!(rotation.step(end), Step::Wait(None));
        rotation.end_use(0, now);
        assert_eq!(rotation.step(now), Step::Leave(0));
    }

    #[test]
    fn a_model_that_stays_never_leaves() {
        let mut rotation = Rotation::new(vec![Slot::resident(), Slot::new(11)], 10);
        rotation.begin_use(0, Some(Duration::ZERO));
        rotation.end_use(0, Instant::now());
        rotation.begin_waiting(1);
        assert_eq!(rotation.step(Instant::now()), Step::Wait(None));
    }
}
