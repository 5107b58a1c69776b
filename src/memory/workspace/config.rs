//! What a workspace is like: policies, sizes, and which of them contradict each other.

use std::path::{Path, PathBuf};

use crate::base::{
    call::Call,
    error::{Error, Result},
};

/// How much larger than its need a workspace is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationPolicy {
    /// Exactly what was asked for or learned. ND4J: `STRICT`.
    Strict,
    /// That, and the fraction `overallocation_limit` of it; of a circular workspace, so many further blocks.
    /// ND4J: `OVERALLOCATE`.
    Overallocate,
}

/// When a workspace gets a size that it was not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LearningPolicy {
    /// At the end of the first cycle in which something was made, as large as that. ND4J: `FIRST_LOOP`.
    FirstLoop,
    /// After `cycles_before_initialization` cycles, as large as the largest of them; with 0, only when it is asked
    /// to. ND4J: `OVER_TIME`.
    OverTime,
    /// Never: `initial_size` is what there is, unless `SpillPolicy::Reallocate` makes more. ND4J: `NONE`.
    None,
    /// In every cycle it learns which arrays live when; from the second one on, those that do not live together share
    /// bytes. Its block is as large as that plan needs, whatever the allocation policy says of slack, which is at best
    /// the most bytes alive at once; `initial_size` is the least it has.
    ///
    /// Only arrays that really ended make room: their last handle is gone, no gradient needs them and nobody reads
    /// them. A cycle that differs from all plans takes gaps between what lives from there on, and is learned from:
    /// [`WorkspaceStats::plan`](crate::WorkspaceStats::plan) says how often and why. Batches that are smaller than the
    /// largest one go by its plan; sixteen kinds of cycles have one each. Not for circular and mapped workspaces.
    ///
    /// ```
    /// # use ndgc::{DType, Device, LearningPolicy, Tensor, Workspace, WorkspaceConfig};
    /// let config = WorkspaceConfig::builder().policy_learning(LearningPolicy::Planned).build()?;
    /// for _ in 0..3 {
    ///     let _cycle = Workspace::enter("STEP", &config)?;
    ///     let mut x = Tensor::ones(1024, DType::F32, &Device::Cpu)?;
    ///     for _ in 0..100 {
    ///         x = x.affine(1., 1.)?; // of these 101 arrays two live at a time
    ///     }
    /// }
    /// let step = Workspace::find("STEP").map(|step| step.stats()).expect("entered above");
    /// assert_eq!((step.size, step.max_cycle), (2 << 12, 101 << 12));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    ///
    /// ND4J has none. ndgc's own, after the planners of static graphs (greedy by size: arXiv 2001.03288), from cycles
    /// that ran instead of a graph.
    Planned,
}

/// What becomes of a request that the workspace has no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpillPolicy {
    /// It gets memory of its own until the end of the cycle. ND4J: `EXTERNAL`.
    External,
    /// The same, and at the end of the cycle the workspace grows to what the cycle needed; a circular one some
    /// turns later, when nothing in it is valid any more. ND4J: `REALLOCATE`.
    Reallocate,
    /// It is refused with [`Error::WorkspaceFull`]. Before there is a size to be learned from nothing is refused.
    /// ND4J: `FAIL`.
    Fail,
}

/// What the end of a cycle does to the arrays made in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetPolicy {
    /// It ends them: each cycle begins with an empty workspace. ND4J: `BLOCK_LEFT`.
    BlockLeft,
    /// Nothing: the workspace is a ring in which each cycle takes the next block, and an array ends when the ring
    /// comes round to it. ND4J: `ENDOFBUFFER_REACHED`.
    EndOfBufferReached,
}

/// Where the arrays of a workspace can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirroringPolicy {
    /// On the device of the workspace. ND4J: `FULL`.
    Full,
    /// On the host only, whatever the device: a cache to copy from. ND4J: `HOST_ONLY`.
    HostOnly,
}

/// What the memory of a workspace is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocationPolicy {
    /// Memory of the device. ND4J: `RAM`.
    Ram,
    /// A file mapped into memory. ND4J: `MMAP`.
    Mmap,
}

/// How the workspaces of a program are switched off to look for an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebugMode {
    /// They work. ND4J: `DISABLED`.
    Disabled,
    /// Each array gets memory of its own, and ends with its cycle all the same; nothing is learned.
    /// ND4J: `SPILL_EVERYTHING`.
    SpillEverything,
    /// There are none: arrays are made as if no workspace were open. ND4J: `BYPASS_EVERYTHING`.
    BypassEverything,
}

/// The settings of a workspace, free of contradictions. Two workspaces of one name must have equal ones.
///
/// The default is for cycles that need about the same each time: what a later one needs beyond the first, and its
/// slack, lies beside the block, and is asked for again in each cycle. Where lengths vary, give
/// [`SpillPolicy::Reallocate`]: the block then grows to the longest cycle so far, and a loop asks for memory a few
/// times in all.
///
/// ```
/// use ndgc::{LearningPolicy, SpillPolicy, WorkspaceConfig};
///
/// let config = WorkspaceConfig::builder()
///     .initial_size(10 << 20)
///     .policy_learning(LearningPolicy::None)
///     .policy_spill(SpillPolicy::Reallocate)
///     .build()?;
/// assert_eq!(config.initial_size(), 10 << 20);
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct WorkspaceConfig {
    allocation: AllocationPolicy,
    spill: SpillPolicy,
    mirroring: MirroringPolicy,
    learning: LearningPolicy,
    reset: ResetPolicy,
    location: LocationPolicy,
    temp_file_path: Option<PathBuf>,
    initial_size: u64,
    min_size: u64,
    max_size: u64,
    cycles_before_initialization: u32,
    overallocation_limit: f64,
    steps_number: u32,
    shrink_after: Option<u32>,
}

impl Default for WorkspaceConfig {
    /// Overallocates by 0.3, learns from the first cycle, spills to memory outside (also when later cycles are always
    /// longer: see [`SpillPolicy::Reallocate`]), is empty at each begin of a cycle, lies in memory, has no sizes given,
    /// keeps what a ring cannot hold for 2 steps, and shrinks after 1000 small cycles.
    fn default() -> WorkspaceConfig {
        WorkspaceConfig {
            allocation: AllocationPolicy::Overallocate,
            spill: SpillPolicy::External,
            mirroring: MirroringPolicy::Full,
            learning: LearningPolicy::FirstLoop,
            reset: ResetPolicy::BlockLeft,
            location: LocationPolicy::Ram,
            temp_file_path: None,
            initial_size: 0,
            min_size: 0,
            max_size: 0,
            cycles_before_initialization: 0,
            overallocation_limit: 0.3,
            steps_number: 2,
            shrink_after: Some(1000),
        }
    }
}

impl WorkspaceConfig {
    /// The default settings, to be changed.
    pub fn builder() -> WorkspaceConfigBuilder {
        WorkspaceConfigBuilder::default()
    }

    /// How much larger than its need it is made.
    pub fn policy_allocation(&self) -> AllocationPolicy {
        self.allocation
    }

    /// What becomes of a request that it has no room for.
    pub fn policy_spill(&self) -> SpillPolicy {
        self.spill
    }

    /// Where its arrays can be used.
    pub fn policy_mirroring(&self) -> MirroringPolicy {
        self.mirroring
    }

    /// When it gets a size that it was not given.
    pub fn policy_learning(&self) -> LearningPolicy {
        self.learning
    }

    /// What the end of a cycle does to its arrays.
    pub fn policy_reset(&self) -> ResetPolicy {
        self.reset
    }

    /// What its memory is.
    pub fn policy_location(&self) -> LocationPolicy {
        self.location
    }

    /// The file of a mapped workspace; none for a temporary one.
    pub fn temp_file_path(&self) -> Option<&Path> {
        self.temp_file_path.as_deref()
    }

    /// Bytes of its first block; 0 if they are to be learned.
    pub fn initial_size(&self) -> u64 {
        self.initial_size
    }

    /// The fewest bytes that it learns.
    pub fn min_size(&self) -> u64 {
        self.min_size
    }

    /// The most bytes that its block may have; 0 for any number.
    pub fn max_size(&self) -> u64 {
        self.max_size
    }

    /// Cycles that [`LearningPolicy::OverTime`] learns from.
    pub fn cycles_before_initialization(&self) -> u32 {
        self.cycles_before_initialization
    }

    /// The slack of [`AllocationPolicy::Overallocate`], as a fraction or as a number of blocks.
    pub fn overallocation_limit(&self) -> f64 {
        self.overallocation_limit
    }

    /// Steps for which a circular workspace keeps what did not fit its blocks.
    pub fn steps_number(&self) -> u32 {
        self.steps_number
    }

    /// Cycles in a row with less than half of the need after which it shrinks; none if it never does.
    pub fn shrink_after(&self) -> Option<u32> {
        self.shrink_after
    }

    /// Whether it is a ring.
    pub(crate) fn is_circular(&self) -> bool {
        self.reset == ResetPolicy::EndOfBufferReached
    }
}

/// Makes a [`WorkspaceConfig`]; each setting has ND4J's name and, until it is changed, ND4J's value.
#[derive(Clone, Debug, Default)]
pub struct WorkspaceConfigBuilder {
    config: WorkspaceConfig,
}

impl WorkspaceConfigBuilder {
    /// How much larger than its need the workspace is made.
    ///
    /// ```
    /// # use ndgc::{AllocationPolicy, DType, Device, Tensor, Workspace, WorkspaceConfig};
    /// let config = WorkspaceConfig::builder().policy_allocation(AllocationPolicy::Strict).build()?;
    /// let step = Workspace::for_current_thread("STEP", &config)?;
    /// let cycle = step.activate()?;
    /// Tensor::zeros(4096, DType::U8, &Device::Cpu)?;
    /// cycle.leave();
    /// assert_eq!(step.stats().size, 4096); // what the cycle needed, and no more
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn policy_allocation(mut self, policy: AllocationPolicy) -> Self {
        self.config.allocation = policy;
        self
    }

    /// What becomes of a request that it has no room for.
    ///
    /// ```
    /// # use ndgc::{AllocationPolicy, DType, Device, Error, SpillPolicy, Tensor, Workspace, WorkspaceConfig};
    /// let builder = WorkspaceConfig::builder().initial_size(4096).policy_allocation(AllocationPolicy::Strict);
    /// let _cycle = Workspace::enter("STEP", &builder.policy_spill(SpillPolicy::Fail).build()?)?;
    /// let _x = Tensor::zeros(4000, DType::U8, &Device::Cpu)?;
    /// let Err(Error::WorkspaceFull(told)) = Tensor::zeros(100, DType::U8, &Device::Cpu) else { panic!("no room") };
    /// assert_eq!((told.size, told.requested), (4096, 100));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn policy_spill(mut self, policy: SpillPolicy) -> Self {
        self.config.spill = policy;
        self
    }

    /// Where its arrays can be used.
    ///
    /// ```
    /// # use ndgc::{DType, Device, MirroringPolicy, SimConfig, Tensor, Workspace, WorkspaceConfig};
    /// let device = Device::sim(SimConfig::default());
    /// let config = WorkspaceConfig::builder().policy_mirroring(MirroringPolicy::HostOnly).build()?;
    /// let _cycle = Workspace::enter_on(&device, "CACHE", &config)?;
    /// assert!(Tensor::ones(3, DType::F32, &device)?.device().is_cpu()); // though the device was asked for
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn policy_mirroring(mut self, policy: MirroringPolicy) -> Self {
        self.config.mirroring = policy;
        self
    }

    /// When it gets a size that it was not given.
    ///
    /// ```
    /// # use ndgc::{Error, LearningPolicy, WorkspaceConfig};
    /// let builder = WorkspaceConfig::builder().policy_learning(LearningPolicy::None);
    /// let refused = builder.clone().build(); // no size is given, and none would be learned
    /// assert!(matches!(refused, Err(Error::WorkspaceConfig { setting: "policy_learning", .. })));
    /// assert!(builder.initial_size(1 << 20).build().is_ok());
    /// ```
    pub fn policy_learning(mut self, policy: LearningPolicy) -> Self {
        self.config.learning = policy;
        self
    }

    /// What the end of a cycle does to its arrays.
    ///
    /// ```
    /// # use ndgc::{DType, Device, ResetPolicy, Tensor, Workspace, WorkspaceConfig};
    /// let builder = WorkspaceConfig::builder().policy_reset(ResetPolicy::EndOfBufferReached);
    /// let ring = builder.initial_size(4096).overallocation_limit(2.).build()?; // two blocks beside the first
    /// let mut batches = Vec::new();
    /// for _ in 0..4 {
    ///     let _cycle = Workspace::enter("RING", &ring)?;
    ///     batches.push(Tensor::zeros(1024, DType::F32, &Device::Cpu)?);
    /// }
    /// assert!(!batches[0].is_open()); // the ring came round to it
    /// assert!(batches[1..].iter().all(Tensor::is_open));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn policy_reset(mut self, policy: ResetPolicy) -> Self {
        self.config.reset = policy;
        self
    }

    /// What its memory is.
    ///
    /// ```
    /// # use ndgc::{Error, LocationPolicy, WorkspaceConfig};
    /// let builder = WorkspaceConfig::builder().policy_location(LocationPolicy::Mmap);
    /// let refused = builder.clone().build(); // how large is the file to be?
    /// assert!(matches!(refused, Err(Error::WorkspaceConfig { setting: "policy_location", .. })));
    /// assert!(builder.initial_size(1 << 30).build().is_ok());
    /// ```
    pub fn policy_location(mut self, policy: LocationPolicy) -> Self {
        self.config.location = policy;
        self
    }

    /// The file of a mapped workspace, for which the caller of `temp_file_path` (`promised/mod.rs`) promises.
    pub(crate) fn with_file(mut self, path: PathBuf) -> Self {
        self.config.temp_file_path = Some(path);
        self
    }

    /// Bytes of the first block, which is made with the workspace and larger by the slack unless it is mapped. Of
    /// a circular workspace that overallocates, bytes of one of its blocks. 0: they are learned.
    ///
    /// ```
    /// # use ndgc::{Workspace, WorkspaceConfig};
    /// let config = WorkspaceConfig::builder().initial_size(4096).overallocation_limit(0.5).build()?;
    /// let step = Workspace::for_current_thread("STEP", &config)?;
    /// assert_eq!(step.stats().size, 6144); // before its first cycle
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn initial_size(mut self, bytes: u64) -> Self {
        self.config.initial_size = bytes;
        self
    }

    /// The fewest bytes that are learned; the first block, if nothing is to be learned and `initial_size` is 0.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor, Workspace, WorkspaceConfig};
    /// let step = Workspace::for_current_thread("STEP", &WorkspaceConfig::builder().min_size(8192).build()?)?;
    /// assert_eq!(step.stats().size, 0);
    /// let cycle = step.activate()?;
    /// Tensor::zeros(1024, DType::U8, &Device::Cpu)?;
    /// cycle.leave();
    /// assert_eq!(step.stats().size, 8192);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn min_size(mut self, bytes: u64) -> Self {
        self.config.min_size = bytes;
        self
    }

    /// The most bytes that the block may have, slack included; 0 for any number. What spills beside it is bounded by
    /// [`Workspace::set_budget`](crate::Workspace::set_budget).
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor, Workspace, WorkspaceConfig};
    /// let step = Workspace::for_current_thread("STEP", &WorkspaceConfig::builder().max_size(4096).build()?)?;
    /// for _ in 0..2 {
    ///     let _cycle = step.activate()?;
    ///     Tensor::zeros(2048, DType::F32, &Device::Cpu)?; // 8 KiB: there is no room for it
    /// }
    /// assert_eq!((step.stats().size, step.stats().last_cycle), (4096, 8192));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn max_size(mut self, bytes: u64) -> Self {
        self.config.max_size = bytes;
        self
    }

    /// Cycles that [`LearningPolicy::OverTime`] learns from; with 0 it learns when the workspace is told to.
    ///
    /// ```
    /// # use ndgc::{DType, Device, LearningPolicy, Tensor, Workspace, WorkspaceConfig};
    /// let builder = WorkspaceConfig::builder().policy_learning(LearningPolicy::OverTime).overallocation_limit(0.);
    /// let step = Workspace::for_current_thread("STEP", &builder.cycles_before_initialization(2).build()?)?;
    /// for bytes in [1024, 4096, 2048] {
    ///     let _cycle = step.activate()?;
    ///     Tensor::zeros(bytes, DType::U8, &Device::Cpu)?;
    /// }
    /// assert_eq!(step.stats().size, 4096); // the larger need of the first two cycles
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn cycles_before_initialization(mut self, cycles: u32) -> Self {
        self.config.cycles_before_initialization = cycles;
        self
    }

    /// The slack of [`AllocationPolicy::Overallocate`]: a fraction of the need; of a circular workspace the number
    /// of further blocks, a whole one from 1.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor, Workspace, WorkspaceConfig};
    /// let config = WorkspaceConfig::builder().overallocation_limit(0.5).build()?;
    /// let step = Workspace::for_current_thread("STEP", &config)?;
    /// let cycle = step.activate()?;
    /// Tensor::zeros(4096, DType::U8, &Device::Cpu)?;
    /// cycle.leave();
    /// assert_eq!(step.stats().size, 6144); // what the cycle needed, and half of that
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn overallocation_limit(mut self, limit: f64) -> Self {
        self.config.overallocation_limit = limit;
        self
    }

    /// Steps, which are turns of the ring, for which a circular workspace keeps what did not fit its blocks, and
    /// after which one that has to change its size does so.
    pub fn steps_number(mut self, steps: u32) -> Self {
        self.config.steps_number = steps;
        self
    }

    /// Cycles in a row that needed less than half of the block, after which it shrinks to what they needed, with
    /// slack; `None`: it never does. A size that was neither learned nor grown to stays if nothing is to be
    /// learned, and so does a mapped one.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Tensor, Workspace, WorkspaceConfig};
    /// let config = WorkspaceConfig::builder().overallocation_limit(0.).shrink_after(2).build()?;
    /// let step = Workspace::for_current_thread("STEP", &config)?;
    /// for bytes in [4096, 512, 1024] {
    ///     let _cycle = step.activate()?;
    ///     Tensor::zeros(bytes, DType::U8, &Device::Cpu)?;
    /// }
    /// assert_eq!(step.stats().size, 1024); // the larger need of the last two cycles
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn shrink_after(mut self, cycles: impl Into<Option<u32>>) -> Self {
        self.config.shrink_after = cycles.into();
        self
    }

    /// The settings.
    ///
    /// ```
    /// # use ndgc::{Error, WorkspaceConfig};
    /// let contradiction = WorkspaceConfig::builder().initial_size(2 << 20).max_size(1 << 20).build();
    /// assert!(matches!(contradiction, Err(Error::WorkspaceConfig { setting: "initial_size", .. })));
    /// ```
    ///
    /// # Errors
    /// [`Error::WorkspaceConfig`] for the first setting that contradicts another, or is outside its range.
    #[track_caller]
    pub fn build(self) -> Result<WorkspaceConfig> {
        Call::here("build").named(self.config.check_sizes().and_then(|()| self.config.check_policies()))?;
        Ok(self.config)
    }
}

fn wrong<T>(setting: &'static str, value: impl ToString, why: impl Into<String>) -> Result<T> {
    Err(Error::WorkspaceConfig { setting, value: value.to_string(), why: why.into(), site: None })
}

impl WorkspaceConfig {
    fn check_sizes(&self) -> Result<()> {
        let sizes = [("initial_size", self.initial_size), ("min_size", self.min_size), ("max_size", self.max_size)];
        for (setting, bytes) in sizes {
            if bytes > isize::MAX as u64 {
                return wrong(setting, bytes, format!("no block of memory has more than {} bytes", isize::MAX));
            }
            if self.max_size > 0 && bytes > self.max_size {
                let max = self.max_size;
                return wrong(setting, bytes, format!("max_size is {max}; give less here, or more or 0 (none) there"));
            }
        }
        let limit = self.overallocation_limit;
        if !limit.is_finite() || limit < 0.0 {
            return wrong("overallocation_limit", limit, "give a fraction of the need, such as 0.3, or 0");
        }
        if self.steps_number == 0 {
            return wrong(
                "steps_number",
                0,
                "what does not fit a ring is kept for 1 step at least; give 2 if in doubt",
            );
        }
        if self.shrink_after == Some(0) {
            return wrong("shrink_after", "Some(0)", "give the number of small cycles, 1 or more, or None for never");
        }
        Ok(())
    }

    fn check_policies(&self) -> Result<()> {
        let limit = self.overallocation_limit;
        if self.is_circular()
            && self.allocation == AllocationPolicy::Overallocate
            && (limit < 1.0 || limit.fract() != 0.0)
        {
            return wrong(
                "overallocation_limit",
                limit,
                "For cyclic workspace overallocation should be positive integral value. It is the number of blocks \
                 beside the first: give 1, 2, 3 and so on, or AllocationPolicy::Strict",
            );
        }
        let cycles = self.cycles_before_initialization;
        if cycles > 0 && self.learning != LearningPolicy::OverTime {
            let why = format!("policy_learning is {:?}; only LearningPolicy::OverTime counts cycles", self.learning);
            return wrong("cycles_before_initialization", cycles, why);
        }
        let mapped = self.location == LocationPolicy::Mmap;
        if self.learning == LearningPolicy::Planned && (mapped || self.is_circular()) {
            return wrong(
                "policy_learning",
                "Planned",
                "a circular workspace keeps the arrays of several cycles, and a mapped one those of the last run: neither \
                 has bytes to share; choose LearningPolicy::FirstLoop",
            );
        }
        match &self.temp_file_path {
            Some(path) if !mapped => {
                return wrong("temp_file_path", path.display(), "only a workspace of LocationPolicy::Mmap has a file");
            }
            None if mapped && self.initial_size == 0 => {
                return wrong(
                    "policy_location",
                    "Mmap",
                    "MMAP target file path should be non-null or workspace initialSize should be >0 for temp file: \
                     give temp_file_path or initial_size",
                );
            }
            None if self.learning == LearningPolicy::None && self.initial_size == 0 && self.min_size == 0 => {
                return wrong(
                    "policy_learning",
                    "None",
                    "without initial_size, nothing would ever be in the workspace: give initial_size, or \
                     LearningPolicy::FirstLoop",
                );
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(builder: WorkspaceConfigBuilder) -> (&'static str, String) {
        match builder.build() {
            Err(error @ Error::WorkspaceConfig { setting, .. }) => (setting, error.to_string()),
            other => panic!("{other:?}"),
        }
    }

    fn ring() -> WorkspaceConfigBuilder {
        WorkspaceConfig::builder().policy_reset(ResetPolicy::EndOfBufferReached)
    }

    fn mapped() -> WorkspaceConfigBuilder {
        WorkspaceConfig::builder().policy_location(LocationPolicy::Mmap)
    }

    /// With a file, which no test here maps.
    fn at_x(builder: WorkspaceConfigBuilder) -> WorkspaceConfigBuilder {
        builder.with_file("x".into())
    }

    #[test]
    fn the_default_is_what_the_builder_makes() {
        assert_eq!(WorkspaceConfig::builder().build().expect("no contradiction"), WorkspaceConfig::default());
        assert_ne!(
            WorkspaceConfig::builder().min_size(1).build().expect("no contradiction"),
            WorkspaceConfig::default()
        );
    }

    #[test]
    fn every_setting_arrives() {
        let config = at_x(WorkspaceConfig::builder())
            .policy_allocation(AllocationPolicy::Strict)
            .policy_spill(SpillPolicy::Fail)
            .policy_mirroring(MirroringPolicy::HostOnly)
            .policy_learning(LearningPolicy::OverTime)
            .policy_reset(ResetPolicy::EndOfBufferReached)
            .policy_location(LocationPolicy::Mmap)
            .initial_size(2)
            .min_size(1)
            .max_size(3)
            .cycles_before_initialization(4)
            .overallocation_limit(5.5)
            .steps_number(6)
            .shrink_after(7)
            .build()
            .expect("no contradiction");
        assert_eq!(config.policy_allocation(), AllocationPolicy::Strict);
        assert_eq!(config.policy_spill(), SpillPolicy::Fail);
        assert_eq!(config.policy_mirroring(), MirroringPolicy::HostOnly);
        assert_eq!(config.policy_learning(), LearningPolicy::OverTime);
        assert_eq!(config.policy_reset(), ResetPolicy::EndOfBufferReached);
        assert_eq!(config.policy_location(), LocationPolicy::Mmap);
        assert_eq!(config.temp_file_path(), Some(Path::new("x")));
        assert_eq!((config.initial_size(), config.min_size(), config.max_size()), (2, 1, 3));
        assert_eq!(config.cycles_before_initialization(), 4);
        assert_eq!(config.overallocation_limit(), 5.5);
        assert_eq!(config.steps_number(), 6);
        assert_eq!(config.shrink_after(), Some(7));
    }

    #[test]
    fn contradictions_name_the_setting() {
        for limit in [-0.1, f64::NAN, f64::INFINITY] {
            assert_eq!(refused(WorkspaceConfig::builder().overallocation_limit(limit)).0, "overallocation_limit");
        }
        assert_eq!(refused(WorkspaceConfig::builder().min_size(2).max_size(1)).0, "min_size");
        assert_eq!(refused(WorkspaceConfig::builder().initial_size(2).max_size(1)).0, "initial_size");
        assert_eq!(refused(WorkspaceConfig::builder().max_size(u64::MAX)).0, "max_size");
        assert_eq!(refused(WorkspaceConfig::builder().initial_size(1 << 63)).0, "initial_size");
        assert_eq!(refused(WorkspaceConfig::builder().steps_number(0)).0, "steps_number");
        assert_eq!(refused(WorkspaceConfig::builder().shrink_after(0)).0, "shrink_after");
        let cycles = WorkspaceConfig::builder().cycles_before_initialization(1);
        assert_eq!(refused(cycles).0, "cycles_before_initialization");
        assert_eq!(refused(at_x(WorkspaceConfig::builder())).0, "temp_file_path");
        let (setting, text) = refused(mapped());
        assert_eq!(setting, "policy_location");
        assert!(text.contains("MMAP target file path should be non-null"), "{text}");
        let (setting, text) = refused(WorkspaceConfig::builder().policy_learning(LearningPolicy::None));
        assert_eq!(setting, "policy_learning");
        assert!(text.contains("nothing would ever be in the workspace"), "{text}");
    }

    #[test]
    fn rings_and_files_are_not_planned() {
        for builder in [ring().policy_allocation(AllocationPolicy::Strict), mapped().initial_size(1)] {
            let (setting, text) = refused(builder.policy_learning(LearningPolicy::Planned));
            assert_eq!(setting, "policy_learning");
            assert!(text.contains("choose LearningPolicy::FirstLoop"), "{text}");
        }
    }

    #[test]
    fn a_ring_has_whole_blocks() {
        for builder in [ring(), ring().overallocation_limit(0.0), ring().overallocation_limit(1.5)] {
            let (setting, text) = refused(builder);
            assert_eq!(setting, "overallocation_limit");
            assert!(text.contains("For cyclic workspace overallocation should be positive integral value."), "{text}");
        }
        ring().overallocation_limit(1.0).build().expect("no contradiction");
        ring().policy_allocation(AllocationPolicy::Strict).build().expect("no contradiction");
    }

    #[test]
    fn what_looks_odd_and_is_not() {
        mapped().initial_size(1_000_000_000).build().expect("no contradiction");
        at_x(mapped()).build().expect("no contradiction");
        at_x(mapped()).policy_learning(LearningPolicy::None).build().expect("no contradiction");
        mapped().initial_size(1).policy_mirroring(MirroringPolicy::HostOnly).build().expect("no contradiction");
        mapped()
            .initial_size(1)
            .policy_reset(ResetPolicy::EndOfBufferReached)
            .overallocation_limit(1.0)
            .build()
            .expect("no contradiction");
        WorkspaceConfig::builder().policy_learning(LearningPolicy::OverTime).build().expect("no contradiction");
        WorkspaceConfig::builder().policy_learning(LearningPolicy::None).min_size(1).build().expect("no contradiction");
        WorkspaceConfig::builder()
            .initial_size(5)
            .max_size(5)
            .min_size(5)
            .shrink_after(None)
            .build()
            .expect("no contradiction");
    }
}
