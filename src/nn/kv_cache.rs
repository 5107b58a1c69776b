//! Keys and values of the positions so far, for attention that goes on one position at a time.

use std::panic::Location;

use crate::base::{call::Call, heap};
use crate::ops::call::{check, exec::kept};
use crate::{Device, Error, Result, Shape, Tensor};

/// Positions along one axis, appended in place to a block of memory that grows by its first size.
///
/// The memory belongs to the cache's handles. What it gives out are views, in which later positions appear only if the
/// block is the same; [`Tensor::copy`] keeps one as it is.
///
/// As in candle, clones share the block: what one takes in overwrites what another took in at the same positions.
/// Sequences that part, as in a beam search, want caches of their own, made by appending a copy of the positions.
#[derive(Clone, Debug)]
pub struct Cache {
    all_data: Option<Tensor>,
    dim: usize,
    current_seq_len: usize,
    grow_by: usize,
    max_seq_len: usize,
}

/// Zeros like `src` but for the number of positions.
#[track_caller]
fn block(src: &Tensor, dim: usize, positions: usize) -> Result<Tensor> {
    let shape = *src.shape();
    shape.dim(dim)?;
    // It outlives the cycle of a workspace in which the first positions come.
    kept(Location::caller(), || Tensor::zeros(shape.with_dim(dim, positions), src.dtype(), src.device()))
}

/// All positions with those of `new`, outside the gradient graph.
#[track_caller]
fn joined(all: Option<&Tensor>, new: &Tensor, dim: usize) -> Result<Tensor> {
    match all {
        None => Ok(new.detach().contiguous()?.detach()),
        Some(all) => Ok(Tensor::cat(&[all, &new.detach()], dim)?.detach()),
    }
}

impl Cache {
    /// Empty, for positions along axis `dim`, with memory for `max_seq_len` of them.
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        Cache { all_data: None, dim, current_seq_len: 0, grow_by: max_seq_len, max_seq_len }
    }

    /// What it has; of `src` no positions, if it has none.
    #[track_caller]
    fn all_or_none(&self, src: &Tensor) -> Result<Tensor> {
        match self.current_data()? {
            Some(all) => Ok(all),
            None => src.narrow(self.dim, 0, 0),
        }
    }

    /// Without positions or memory.
    pub fn reset(&mut self) {
        self.current_seq_len = 0;
        self.all_data = None;
    }

    /// Takes the positions of `src` in.
    ///
    /// # Errors
    /// [`Error::Argument`] if it was made for no positions; as [`Tensor::slice_set`] and [`Tensor::zeros`]. The
    /// positions before are as they were then.
    #[track_caller]
    pub fn append(&mut self, src: &Tensor) -> Result<()> {
        let count = src.dim(self.dim)?;
        if self.grow_by == 0 {
            return Err(Error::argument(Call::here("Cache::append"), "max_seq_len", "0", "at least 1"));
        }
        let mut all = match &self.all_data {
            Some(all) => all.clone(),
            None => block(src, self.dim, self.max_seq_len)?,
        };
        let wanted = self.current_seq_len.saturating_add(count);
        let missing = wanted.saturating_sub(self.max_seq_len).div_ceil(self.grow_by);
        let mut room = self.max_seq_len;
        if missing > 0 {
            room = missing.saturating_mul(self.grow_by).saturating_add(room);
            let larger = block(src, self.dim, room)?;
            larger.slice_set(&all, self.dim, 0)?;
            all = larger;
        }
        // A view of the block itself is written, unless its elements follow each other, by way of a copy.
        let copy = match check::apart(Call::here("slice_set"), &all, &[src]) {
            Err(Error::Argument { .. }) if !src.is_contiguous() => Some(src.aside()?.contiguous()?),
            _ => None,
        };
        all.slice_set(copy.as_ref().unwrap_or(src), self.dim, self.current_seq_len)?;
        self.all_data = Some(all);
        self.max_seq_len = room;
        self.current_seq_len = wanted;
        Ok(())
    }
}

/// What a cache says of its block, and of the positions so far and at most.
macro_rules! of_block {
    ($cache:ident, $so_far:literal, $most:literal) => {
        impl $cache {
            /// The axis of positions.
            pub fn dim(&self) -> usize {
                self.dim
            }

            #[doc = $so_far]
            pub fn current_seq_len(&self) -> usize {
                self.current_seq_len
            }

            #[doc = $most]
            pub fn max_seq_len(&self) -> usize {
                self.max_seq_len
            }

            /// The whole block.
            pub fn all_data(&self) -> &Option<Tensor> {
                &self.all_data
            }

            /// A view of the positions kept, in the order of the block.
            ///
            /// # Errors
            /// As [`Tensor::narrow`].
            #[track_caller]
            pub fn current_data(&self) -> Result<Option<Tensor>> {
                let kept = self.current_seq_len.min(self.max_seq_len);
                // Not in a closure, which would be the line that made it.
                match &self.all_data {
                    Some(all) => Ok(Some(all.narrow(self.dim, 0, kept)?)),
                    None => Ok(None),
                }
            }
        }
    };
}

of_block!(Cache, "Positions so far.", "Positions that there is memory for.");
of_block!(RotatingCache, "Positions taken in so far, also those written over.", "Positions kept.");

/// What a pair of caches shares: its parts, and what they hold.
macro_rules! pair {
    ($pair:ident of $cache:ident) => {
        impl $pair {
            /// The cache of keys.
            pub fn k_cache(&self) -> &$cache {
                &self.k
            }

            /// The cache of values.
            pub fn v_cache(&self) -> &$cache {
                &self.v
            }

            /// The cache of keys, to be changed.
            pub fn k_cache_mut(&mut self) -> &mut $cache {
                &mut self.k
            }

            /// The cache of values, to be changed.
            pub fn v_cache_mut(&mut self) -> &mut $cache {
                &mut self.v
            }

            /// A view of the keys that it holds.
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($cache), "::current_data`].")]
            #[track_caller]
            pub fn k(&self) -> Result<Option<Tensor>> {
                self.k.current_data()
            }

            /// A view of the values that it holds.
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($cache), "::current_data`].")]
            #[track_caller]
            pub fn v(&self) -> Result<Option<Tensor>> {
                self.v.current_data()
            }

            /// Positions taken in so far.
            pub fn current_seq_len(&self) -> usize {
                self.k.current_seq_len()
            }

            /// Without positions or memory.
            pub fn reset(&mut self) {
                self.k.reset();
                self.v.reset();
            }
        }
    };
}

pair!(KvCache of Cache);
pair!(RotatingKvCache of RotatingCache);

/// The two caches of an attention.
///
/// ```
/// # use ndgc::{nn::kv_cache::KvCache, DType, Device, Tensor};
/// let mut cache = KvCache::new(2, 16); // of [batch, heads, positions, width]
/// let first = Tensor::ones((1, 2, 3, 4), DType::F32, &Device::Cpu)?; // three positions of a prompt
/// let (keys, _) = cache.append(&first, &first)?;
/// assert_eq!(keys.dims(), [1, 2, 3, 4]);
/// let next = Tensor::ones((1, 2, 1, 4), DType::F32, &Device::Cpu)?;
/// let (keys, values) = cache.append(&next, &next)?; // what attention looks at: all so far
/// assert_eq!((keys.dims(), values.dims()), (&[1, 2, 4, 4][..], &[1, 2, 4, 4][..]));
/// # Ok::<(), ndgc::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct KvCache {
    k: Cache,
    v: Cache,
}

impl KvCache {
    /// Empty, for positions along axis `dim`, with memory for `max_seq_len` of them.
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        KvCache { k: Cache::new(dim, max_seq_len), v: Cache::new(dim, max_seq_len) }
    }

    /// Takes keys and values in; views of all so far.
    ///
    /// # Errors
    /// As [`Cache::append`]; neither is taken in then.
    #[track_caller]
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let mut keys = self.k.clone();
        keys.append(k)?;
        self.v.append(v)?;
        self.k = keys;
        Ok((self.k.all_or_none(k)?, self.v.all_or_none(v)?))
    }
}

/// The last `max_seq_len` positions, in a block that is written round and round; of 0, none are kept. Clones share the
/// block, as those of [`Cache`] do.
#[derive(Clone, Debug)]
pub struct RotatingCache {
    all_data: Option<Tensor>,
    dim: usize,
    offset: usize,
    current_seq_len: usize,
    max_seq_len: usize,
}

impl RotatingCache {
    /// Empty, for positions along axis `dim`.
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        RotatingCache { all_data: None, dim, offset: 0, current_seq_len: 0, max_seq_len }
    }

    /// Where the next position goes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Without positions or memory.
    pub fn reset(&mut self) {
        *self = Self::new(self.dim, self.max_seq_len);
    }

    /// Takes the positions of `src` in. What attention should look at: the positions kept, or `src` itself if it is
    /// longer than that.
    ///
    /// # Errors
    /// As [`Tensor::slice_set`] and [`Tensor::zeros`]. Nothing is taken in then; only a device that fails while it
    /// writes may leave positions lost that the new ones were to replace.
    ///
    /// ```
    /// # use ndgc::{nn::kv_cache::RotatingCache, Device, Tensor};
    /// let mut cache = RotatingCache::new(0, 3); // the last three positions
    /// let piece = |numbers: &[f32]| Tensor::new(numbers, &Device::Cpu);
    /// assert_eq!(cache.append(&piece(&[10., 11.])?)?.to_vec1::<f32>()?, [10., 11.]);
    /// assert_eq!(cache.positions(2), [3, 1, 2]); // where two more would go
    /// assert_eq!(cache.append(&piece(&[12., 13.])?)?.to_vec1::<f32>()?, [13., 11., 12.]);
    /// assert_eq!(cache.current_seq_len(), 4);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn append(&mut self, src: &Tensor) -> Result<Tensor> {
        let next = self.next(src)?;
        next.write(self.dim)?;
        Ok(self.take(next))
    }

    /// The block, which is made for the first positions, if those of `src` can be written into it.
    #[track_caller]
    fn block_for(&self, src: &Tensor) -> Result<Tensor> {
        let all = match &self.all_data {
            Some(all) => all.clone(),
            None => block(src, self.dim, self.max_seq_len)?,
        };
        src.dim(self.dim)?;
        let like = |x: &Tensor| (x.shape().with_dim(self.dim, 0), x.dtype());
        if !src.is_open() || like(&all) != like(src) || all.device() != src.device() {
            // Of none of them, for its error.
            let none = src.narrow(self.dim, 0, 0)?;
            let result = all.slice_set(&none, self.dim, 0);
            none.close();
            result?;
        }
        Ok(all)
    }

    /// What is to be written for the positions of `src`, and what is true then. All that wants memory is done here.
    #[track_caller]
    fn next(&self, src: &Tensor) -> Result<Next> {
        let all = self.block_for(src)?;
        let (dim, max) = (self.dim, self.max_seq_len);
        let count = src.dim(dim)?;
        let taken = self.current_seq_len.saturating_add(count);
        let (parts, offset, seen) = if count >= max {
            ([part(&all, src, dim, [count - max, max, 0])?, None], 0, src.clone())
        } else {
            let first = count.min(max - self.offset);
            let parts =
                [part(&all, src, dim, [0, first, self.offset])?, part(&all, src, dim, [first, count - first, 0])?];
            (parts, self.offset_after(count), all.narrow(dim, 0, taken.min(max))?)
        };
        Ok(Next { all, parts, offset, taken, seen })
    }

    /// Goes on to what was written.
    fn take(&mut self, next: Next) -> Tensor {
        self.all_data = Some(next.all);
        (self.offset, self.current_seq_len) = (next.offset, next.taken);
        next.seen
    }

    /// Where the next position goes after so many, which are fewer than are kept.
    fn offset_after(&self, count: usize) -> usize {
        let left = self.max_seq_len - self.offset;
        if count < left { self.offset + count } else { count - left }
    }

    /// How many positions attention looks at after `seq_len` more, and which one is at a place of these.
    fn seen(&self, seq_len: usize) -> (usize, impl Fn(usize) -> usize) {
        let (before, max) = (self.current_seq_len, self.max_seq_len);
        let after = before.saturating_add(seq_len);
        // So many are looked at as they come, and not in the order of the block.
        let is_as_given = seq_len >= max;
        let next = if is_as_given { 0 } else { self.offset_after(seq_len) };
        let at = move |i: usize| match is_as_given {
            true => before + i,
            false if i < next => after - (next - i),
            false => after - (max - (i - next)),
        };
        (if is_as_given { after - before } else { after.min(max) }, at)
    }

    /// The positions that attention looks at after `seq_len` more, in its order: that of the block, or, if they are as
    /// many as are kept or more, that in which they come. None if there is no memory for so many: it has no error to
    /// return, as in candle; [`RotatingCache::attn_mask`] has.
    pub fn positions(&self, seq_len: usize) -> Vec<usize> {
        let (count, at) = self.seen(seq_len);
        let Ok(mut all) = heap::room("positions", count) else { return Vec::new() };
        all.extend((0..count).map(at));
        all
    }

    /// 1 (u8) where a query of the next `seq_len` positions must not look, `[queries, keys]`; none for a single query,
    /// which may look everywhere.
    ///
    /// As in candle, a query may look at the key that is `max_seq_len` positions before it, and so at one position more
    /// than are kept, where that is still there: among several queries, or as many positions as are kept.
    ///
    /// # Errors
    /// [`Error::SizeOverflow`]; [`Error::OutOfMemory`]; as [`Tensor::from_slice`].
    #[track_caller]
    pub fn attn_mask(&self, seq_len: usize, device: &Device) -> Result<Option<Tensor>> {
        if seq_len == 1 {
            return Ok(None);
        }
        let call = Call::here("attn_mask");
        let (count, key) = self.seen(seq_len);
        let dims = Shape::from((seq_len, count));
        let room = dims.check(call, size_of::<u8>())?;
        let Some(end) = self.current_seq_len.checked_add(seq_len) else {
            return Err(Error::size_overflow(call, dims.dims(), size_of::<u8>()));
        };
        let hidden = |query: usize, key: usize| u8::from(key > query || key.saturating_add(self.max_seq_len) < query);
        let mut mask: Vec<u8> = call.named(heap::room(call.op, room))?;
        for query in self.current_seq_len..end {
            mask.extend((0..count).map(|i| hidden(query, key(i))));
        }
        Ok(Some(Tensor::from_slice(&mask, dims, device)?))
    }
}

/// What a rotating cache does next.
struct Next {
    all: Tensor,
    /// What is written into the block, and where.
    parts: [Option<(Tensor, usize)>; 2],
    offset: usize,
    taken: usize,
    /// What attention looks at.
    seen: Tensor,
}

impl Next {
    #[track_caller]
    fn write(&self, dim: usize) -> Result<()> {
        for (part, to) in self.parts.iter().flatten() {
            self.all.slice_set(part, dim, *to)?;
        }
        Ok(())
    }
}

/// Positions of `src` as they can be written into the block at another place; none of none.
#[track_caller]
fn part(all: &Tensor, src: &Tensor, dim: usize, [from, len, to]: [usize; 3]) -> Result<Option<(Tensor, usize)>> {
    if len == 0 {
        return Ok(None);
    }
    // Nothing of it stays with the owner of `src`.
    let part = src.aside()?.narrow(dim, from, len)?.contiguous()?;
    check::apart(Call::here("slice_set"), all, &[&part])?;
    Ok(Some((part, to)))
}

/// The two rotating caches of an attention.
#[derive(Clone, Debug)]
pub struct RotatingKvCache {
    k: RotatingCache,
    v: RotatingCache,
}

impl RotatingKvCache {
    /// Empty, for positions along axis `dim`.
    pub fn new(dim: usize, max_seq_len: usize) -> Self {
        RotatingKvCache { k: RotatingCache::new(dim, max_seq_len), v: RotatingCache::new(dim, max_seq_len) }
    }

    /// Takes keys and values in. See [`RotatingCache::append`].
    ///
    /// # Errors
    /// As [`RotatingCache::append`]; neither is taken in then.
    #[track_caller]
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let (keys, values) = (self.k.next(k)?, self.v.next(v)?);
        keys.write(self.k.dim)?;
        values.write(self.v.dim)?;
        Ok((self.k.take(keys), self.v.take(values)))
    }

    /// Where the next position goes.
    pub fn offset(&self) -> usize {
        self.k.offset()
    }

    /// See [`RotatingCache::attn_mask`].
    ///
    /// # Errors
    /// As [`RotatingCache::attn_mask`].
    #[track_caller]
    pub fn attn_mask(&self, seq_len: usize, device: &Device) -> Result<Option<Tensor>> {
        self.k.attn_mask(seq_len, device)
    }

    /// See [`RotatingCache::positions`].
    pub fn positions(&self, seq_len: usize) -> Vec<usize> {
        self.k.positions(seq_len)
    }
}

/// Keys and values that are put together anew with each position: arrays of exactly the positions so far.
#[derive(Clone, Debug)]
pub struct ConcatKvCache {
    k: Option<Tensor>,
    v: Option<Tensor>,
    dim: usize,
}

impl ConcatKvCache {
    /// Empty, for positions along axis `dim`.
    pub fn new(dim: usize) -> Self {
        ConcatKvCache { k: None, v: None, dim }
    }

    /// Positions so far.
    pub fn current_seq_len(&self) -> usize {
        self.k.as_ref().and_then(|k| k.dims().get(self.dim).copied()).unwrap_or(0)
    }

    /// Whether there is no position.
    pub fn is_empty(&self) -> bool {
        self.k.is_none()
    }

    /// The axis of positions.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Takes keys and values in; all so far, outside the gradient graph.
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`] if there is no such axis; [`Error::ShapeMismatch`] if there is not a value for each
    /// key; as [`Tensor::cat`]. Nothing is taken in then.
    #[track_caller]
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        if k.dim(self.dim)? != v.dim(self.dim)? {
            let call = Call::here("ConcatKvCache::append");
            return Err(Error::shape_mismatch(call, k.dims(), v.dims(), "there is a value for each key"));
        }
        let (k, v) = (joined(self.k.as_ref(), k, self.dim)?, joined(self.v.as_ref(), v, self.dim)?);
        (self.k, self.v) = (Some(k.clone()), Some(v.clone()));
        Ok((k, v))
    }

    /// Without positions.
    pub fn reset(&mut self) {
        (self.k, self.v) = (None, None);
    }

    /// The keys so far.
    pub fn k(&self) -> Option<&Tensor> {
        self.k.as_ref()
    }

    /// The values so far.
    pub fn v(&self) -> Option<&Tensor> {
        self.v.as_ref()
    }

    /// The keys so far, to be exchanged.
    pub fn k_mut(&mut self) -> Option<&mut Tensor> {
        self.k.as_mut()
    }

    /// The values so far, to be exchanged.
    pub fn v_mut(&mut self) -> Option<&mut Tensor> {
        self.v.as_mut()
    }

    /// Keys and values.
    pub fn into_inner(self) -> Option<(Tensor, Tensor)> {
        self.k.zip(self.v)
    }
}

/// Keys and values of one sequence side by side, put together anew with each position: `[positions, heads, 2 *
/// head_dim]`.
#[derive(Clone, Debug)]
pub struct InterleavedKvCache {
    kv: Option<Tensor>,
    head_dim: usize,
}

impl InterleavedKvCache {
    /// Empty.
    pub fn new(head_dim: usize) -> Self {
        InterleavedKvCache { kv: None, head_dim }
    }

    /// Positions so far.
    pub fn current_seq_len(&self) -> usize {
        self.kv.as_ref().and_then(|kv| kv.dims().first().copied()).unwrap_or(0)
    }

    /// Whether there is no position.
    pub fn is_empty(&self) -> bool {
        self.kv.is_none()
    }

    /// Takes keys and values `[1, heads, positions, head_dim]` in; all so far, outside the gradient graph.
    ///
    /// # Errors
    /// [`Error::Shape`] if there are several sequences; as [`Tensor::cat`]. Nothing is taken in then.
    #[track_caller]
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        if let Some(several) = [k, v].into_iter().find(|x| x.rank() != 4 || x.dims()[0] != 1) {
            let call = Call::here("InterleavedKvCache::append");
            return Err(Error::shape(call, several.dims(), "[1, heads, positions, head_dim]"));
        }
        // Detached first, so that the views on the way end with their handles.
        let [k, v] = [k.detach().squeeze(0)?.transpose(0, 1)?, v.detach().squeeze(0)?.transpose(0, 1)?];
        let both = Tensor::cat(&[&k, &v], 2)?;
        let kv = joined(self.kv.as_ref(), &both, 0)?;
        self.kv = Some(kv.clone());
        Ok(kv)
    }

    /// All so far.
    pub fn kv(&self) -> Option<&Tensor> {
        self.kv.as_ref()
    }

    /// Numbers of a key, or of a value.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Without positions.
    pub fn reset(&mut self) {
        self.kv = None;
    }
}
