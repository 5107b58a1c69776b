//! The identity of an array: index of its slot and generation, in eight bytes.

use std::fmt;
use std::num::NonZeroU64;

use slotmap::{Key as _, new_key_type};
use uuid::Uuid;

new_key_type! {
    /// The key of a manager in the tree.
    pub(crate) struct ManagerKey;
}

/// A generational key of an array: which slot of the registry, and for which of its lives.
///
/// Having one tells nothing about the array being there: a key keeps nothing alive. A key whose array
/// ended is an error wherever it is used, never another array. It prints as `7v3`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(
    /// The generation, at least 1, above the index: one word, since two that are written one after the other are not
    /// there yet when they are read back as one.
    NonZeroU64,
);

const _: () = assert!(size_of::<Key>() == 8 && size_of::<Option<Key>>() == 8);

impl Key {
    #[inline]
    pub(crate) fn new(index: u32, generation: u32) -> Self {
        // Generations start at 1 and a slot is retired before it would wrap (`slot.rs`).
        let word = u64::from(generation.max(1)) << 32 | u64::from(index);
        Key(NonZeroU64::new(word).unwrap_or(NonZeroU64::MIN))
    }

    #[inline]
    pub(crate) fn index(self) -> u32 {
        self.0.get() as u32
    }

    #[inline]
    pub(crate) fn generation(self) -> u32 {
        (self.0.get() >> 32) as u32
    }

    /// The generation above these bits.
    #[inline(always)]
    pub(crate) fn open_word(self, bits: u64) -> u64 {
        self.0.get() & u64::MAX << 32 | bits
    }

    /// As one number, for a foreign interface.
    ///
    /// ```
    /// # use ndgc::{DType, Device, Key, Tensor};
    /// let x = Tensor::zeros(3, DType::F32, &Device::Cpu)?;
    /// let number: u64 = x.key().as_ffi(); // through a foreign interface, and back
    /// let found = Tensor::from_registry(Key::from_ffi(number));
    /// assert!(found.is_some_and(|found| found.is_same(&x)));
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    pub fn as_ffi(self) -> u64 {
        self.0.get()
    }

    /// From a number that [`Key::as_ffi`] gave: the same key. Any other number gives the key of whatever array has that
    /// number, if one has.
    pub fn from_ffi(number: u64) -> Self {
        match (number >> 32) as u32 {
            // No array's: the last generation is never handed out (`slot.rs`).
            0 => Key::new(number as u32, u32::MAX),
            generation => Key::new(number as u32, generation),
        }
    }

    /// The array's public identity, derived from the key and the process: nothing is stored for it.
    pub fn uuid(self) -> Uuid {
        process_uuid(b'a', self.as_ffi())
    }
}

impl Ord for Key {
    /// By slot, then by generation.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.index(), self.generation()).cmp(&(other.index(), other.generation()))
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// A uuid made of a number that is unique in this process, of its kind.
pub(crate) fn process_uuid(kind: u8, number: u64) -> Uuid {
    use std::hash::{BuildHasher, RandomState};
    use std::sync::OnceLock;
    static PROCESS: OnceLock<u64> = OnceLock::new();
    // The process's share: the random keys of std's hasher, mixed once.
    let process = PROCESS.get_or_init(|| RandomState::new().hash_one(std::process::id()));
    let mut bytes = [0u8; 16];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    bytes[8..].copy_from_slice(&process.to_be_bytes());
    // `v8` sets the version and variant bits over bytes 6 and 8; what stood in byte 6 moves to byte 15.
    bytes[15] = bytes[6];
    bytes[14] ^= kind;
    Uuid::new_v8(bytes)
}

/// The uuid of a manager.
pub(crate) fn manager_uuid(key: ManagerKey) -> Uuid {
    process_uuid(b'm', key.data().as_ffi())
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}v{}", self.index(), self.generation())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
