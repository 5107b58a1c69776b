//! Indices written as text: `"1:3, ..., {}"`.
//!
//! ```text
//! index   item, item, ..      blanks around an item mean nothing; no item takes the whole array
//! item    -2                  one index, also from the end
//!         a:b:c               as NumPy; each part may be missing, and `{}` stands for a number among the arguments
//!         : or *              the whole axis
//!         ...                 all axes left over, once
//!         null                a new axis
//!         {}                  the next argument: an index, a range, a list of indices, a mask, a new axis
//! ```

use crate::base::{
    call::Call,
    error::{Error, Result},
    shape::MAX_RANK,
};
use crate::memory::proxy::Proxy;
use crate::ops::index::indexer::{TensorIndexer, assign, sliced};

/// More items than any array can take: its axes, as many new ones, and an ellipsis.
const ITEMS: usize = 2 * MAX_RANK + 1;

/// The items of a text.
struct Items {
    all: [TensorIndexer; ITEMS],
    count: usize,
}

impl Items {
    fn get(&self) -> &[TensorIndexer] {
        &self.all[..self.count]
    }
}

/// What goes on while a text is read.
struct IndexReader<'a> {
    call: Call,
    text: &'a str,
    arguments: std::slice::Iter<'a, TensorIndexer>,
}

impl IndexReader<'_> {
    fn wrong<R>(&self, why: String) -> Result<R> {
        let Call { op, site } = self.call;
        Err(Error::Index { op, text: self.text.to_owned(), why, site: Some(site) })
    }

    fn next(&mut self) -> Result<TensorIndexer> {
        match self.arguments.next() {
            Some(argument) => Ok(argument.clone()),
            None => self.wrong("Incorrect number of index arguments: there are more {} than arguments".into()),
        }
    }

    fn number(&self, part: &str) -> Result<i64> {
        match part.parse() {
            Ok(number) => Ok(number),
            Err(_) => self.wrong(format!("Invalid argument index: {part}")),
        }
    }

    /// A part of a slice.
    fn part(&mut self, part: &str) -> Result<Option<i64>> {
        match part {
            "" => Ok(None),
            "{}" => match self.next()? {
                TensorIndexer::Select(at) => Ok(Some(at)),
                TensorIndexer::NewAxis => Ok(None),
                other => self.wrong(format!("Unknown argument: {other:?}; a part of a slice is a number")),
            },
            _ => self.number(part).map(Some),
        }
    }

    fn item(&mut self, item: &str) -> Result<TensorIndexer> {
        Ok(match item {
            "{}" => self.next()?,
            "..." => TensorIndexer::Ellipsis,
            "null" => TensorIndexer::NewAxis,
            "*" => TensorIndexer::Slice(None, None, 1),
            _ if item.contains(':') => {
                let mut parts = [None; 3];
                for (i, part) in item.split(':').enumerate() {
                    let Some(place) = parts.get_mut(i) else {
                        return self.wrong(format!("Invalid argument index: {item}"));
                    };
                    *place = self.part(part.trim())?;
                }
                TensorIndexer::Slice(parts[0], parts[1], parts[2].unwrap_or(1))
            }
            _ => TensorIndexer::Select(self.number(item)?),
        })
    }

    fn items(mut self) -> Result<Items> {
        let mut items = Items { all: [const { TensorIndexer::NewAxis }; ITEMS], count: 0 };
        let texts = self.text.split(',').map(str::trim).filter(|_| !self.text.trim().is_empty());
        for text in texts {
            let item = self.item(text)?;
            if matches!(item, TensorIndexer::Ellipsis)
                && items.get().iter().any(|i| matches!(i, TensorIndexer::Ellipsis))
            {
                return self.wrong("an index can only have a single ellipsis (\"...\")".into());
            }
            let Some(place) = items.all.get_mut(items.count) else {
                return self.wrong(format!("Incorrect number of index arguments: there are more than {ITEMS} items"));
            };
            *place = item;
            items.count += 1;
        }
        match self.arguments.next() {
            None => Ok(items),
            Some(_) => self.wrong("Incorrect number of index arguments: there are fewer {} than arguments".into()),
        }
    }
}

fn read(call: Call, text: &str, arguments: &[TensorIndexer]) -> Result<Items> {
    IndexReader { call, text, arguments: arguments.iter() }.items()
}

/// # Indexing: by text
impl Proxy {
    /// What an index written as text takes (DJL's `NDIndex`): items for the first axes, with commas between them. An
    /// item is a number, `start:end:step` as in NumPy, `:` or `*`, `...`, `null` for a new axis, or `{}` for the next
    /// of the arguments. Views and copies are those of [`Proxy::slice`]; with a gradient.
    ///
    /// # Errors
    /// [`Error::Index`] for a text that is no index, or another number of arguments; as [`Proxy::slice`].
    ///
    /// ```
    /// # use ndgc::{Device, Tensor, s};
    /// let a = Tensor::arange(0f32, 12., &Device::Cpu)?.reshape((3, 4))?;
    /// assert_eq!(a.get_index("1:, ::-2", &[])?.to_vec2::<f32>()?, [[7., 5.], [11., 9.]]);
    /// assert_eq!(a.get_index("..., {}", &s![-1])?.to_vec1::<f32>()?, [3., 7., 11.]);
    /// # Ok::<(), ndgc::Error>(())
    /// ```
    #[track_caller]
    pub fn get_index(&self, index: &str, arguments: &[TensorIndexer]) -> Result<Proxy> {
        let call = Call::here("get_index");
        sliced(call, self, read(call, index, arguments)?.get())
    }

    /// What an index written as text takes, replaced by `src`, which is broadcast to it: in place.
    ///
    /// # Errors
    /// Nothing is changed then: as [`Proxy::get_index`] and [`Proxy::slice_assign_`].
    #[track_caller]
    pub fn set_index(&self, index: &str, arguments: &[TensorIndexer], src: &Proxy) -> Result<()> {
        let call = Call::here("set_index");
        assign(call, self, read(call, index, arguments)?.get(), src)
    }
}
