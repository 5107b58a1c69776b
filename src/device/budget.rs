//! Byte counts of a device, and the limit on them.

/// Bytes of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes of storages that are alive: of arrays, of what gradients saved, and blocks of workspaces; not of mapped
    /// files. Views count once.
    pub active: u64,
    /// The most that `active` was since the start or the last reset, and no less than what was told of it; at most
    /// 64 KiB off for each thread after the first. While a [scope](crate::memory::scope) goes on, since its begin.
    pub peak: u64,
    /// All bytes that were active since the start.
    pub total: u64,
    /// Bytes of the blocks of the pool that `active` ones lie in, which are rounded up; without vectors that arrays
    /// took over.
    pub used: u64,
    /// Bytes kept for reuse.
    pub cached: u64,
    /// The most that `used` was since the start or the last reset. Where several threads take and give small blocks of
    /// the host, off by at most what these keep for themselves: 7 MiB each, of the sizes that they use 128 KiB each.
    pub peak_used: u64,
    /// The most that `cached` was since then, as exact.
    pub peak_cached: u64,
    /// The most that `used` and `cached` were together since the start or the last reset.
    pub peak_reserved: u64,
    /// Bytes of all blocks that were handed out since the start: of one that is used again, each time.
    pub total_used: u64,
    /// All bytes that the system or the driver gave since the start: what went back and came again, each time.
    pub total_reserved: u64,
    /// Bytes that only captured sections have, for as long as their [`Graph`](crate::Graph) lives.
    pub captured: u64,
    /// Of the host: bytes of files that are mapped, for weights, workspaces, and arrays that were
    /// [spilled](crate::memory::set_spill).
    pub mapped: u64,
    /// Of a device: page-locked bytes of the host, for copies from and to it, and of arrays that were
    /// [spilled](crate::memory::set_device_spill).
    pub pinned: u64,
    /// The limit on `active`.
    pub limit: Option<u64>,
    /// The limit on what the process has resident, or on what was taken from the device's driver
    /// ([`Device::set_physical_limit`]).
    ///
    /// [`Device::set_physical_limit`]: crate::Device::set_physical_limit
    pub physical_limit: Option<u64>,
    /// Requests that were served from what was kept, since the start.
    pub hits: u64,
    /// Requests that went to the system, since the start.
    pub misses: u64,
}

/// Why there are no bytes.
#[derive(Debug)]
pub(crate) enum AllocError {
    /// The limit or the device's memory is exhausted: closing arrays may help.
    Exhausted,
    /// The device failed: nothing helps.
    Failed(crate::base::error::Error),
}
