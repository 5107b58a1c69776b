//! The machine that a pickle is a program for, without the part that runs foreign code: it knows the few names that
//! weights are made of, and refuses every other.
//!
//! # Invariants
//! - Values lie in one list and refer to each other by number, so nothing is copied, nested or recursed into.
//! - Each instruction makes a value or two at most: there are never more than twice as many as the program has bytes.
//! - What the values take is counted and bounded ([`Room`]), since a few bytes can make a value of a thousand.

use std::collections::HashMap;
use std::io::Read;

use crate::io::input::Input;
use crate::{DType, Result};

/// Arguments of a call and axes of a tensor: more are refused, so that no long list is copied again and again.
const ARGUMENTS_MAX: usize = 64;
/// As much for names.
const NAME_BYTES_MAX: usize = 1000;

/// What is said where memory ends before the room does.
const NO_MEMORY: &str = "no memory for what the pickle makes";

/// A value's place in the list.
pub(super) type ValueId = u32;

/// What a pickle can talk of.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Nothing,
    Bool(bool),
    Int(i64),
    Text(String),
    /// A value that no weight depends on.
    Other,
    Tuple(Vec<ValueId>),
    List(Vec<ValueId>),
    Dict(Vec<(ValueId, ValueId)>),
    Name(Name),
    /// The numbers of an entry of the archive: dtype, key, count. Bytes if its tensors say the dtype.
    Storage(Option<DType>, String, u64),
    /// A view of a storage.
    Tensor(StorageView),
}

impl Value {
    /// Bytes that it has beside its own, when it is made.
    fn bytes_beside(&self) -> usize {
        match self {
            Value::Text(text) | Value::Storage(_, text, _) => text.len(),
            Value::Tuple(all) | Value::List(all) => size_of_val(&all[..]),
            Value::Tensor(view) => size_of_val(&view.dims[..]) + size_of_val(&view.strides[..]),
            _ => 0,
        }
    }
}

/// A view of a storage.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StorageView {
    pub(super) storage: ValueId,
    /// Of what it says itself.
    pub(super) dtype: Option<DType>,
    pub(super) offset: i64,
    pub(super) dims: Vec<i64>,
    pub(super) strides: Vec<i64>,
}

/// The names that are known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Name {
    /// Called, it is an empty dict.
    Dict,
    /// Called, it is a list of its argument's values.
    List,
    /// Called with storage, offset, sizes, strides, it is a tensor.
    Tensor,
    /// The same of a storage of bytes, with two arguments more and the dtype.
    TypedTensor,
    /// Called with a tensor first, it is that.
    Parameter,
    /// Called with a function, a type and arguments, it is the function called with them.
    FromType,
    /// The type of a storage.
    Storage(DType),
    /// The type of a storage that the tensor's dtype says.
    Untyped,
    /// A dtype.
    DType(DType),
    /// Harmless: its calls are of no matter for weights.
    Harmless,
}

/// The name that Python means, if it is a known one.
fn known(module: &str, name: &str) -> Option<Name> {
    Some(match (module, name) {
        ("collections", "OrderedDict" | "defaultdict") | ("__builtin__" | "builtins", "dict") => Name::Dict,
        ("__builtin__" | "builtins", "list" | "tuple" | "set" | "frozenset") | ("torch", "Size") => Name::List,
        ("torch._utils", "_rebuild_tensor_v2" | "_rebuild_tensor") => Name::Tensor,
        ("torch._utils", "_rebuild_tensor_v3") => Name::TypedTensor,
        // Those that have no type of storage.
        ("torch", "float8_e4m3fn") => Name::DType(DType::F8E4M3),
        ("torch", "uint16") => Name::DType(DType::U16),
        ("torch", "uint32") => Name::DType(DType::U32),
        ("torch", "uint64") => Name::DType(DType::U64),
        ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => Name::Parameter,
        ("torch._tensor", "_rebuild_from_type_v2") => Name::FromType,
        ("torch.nn.parameter", "Parameter") | ("torch", "Tensor" | "device") => Name::Harmless,
        ("torch.storage", "UntypedStorage" | "_UntypedStorage") | ("torch", "UntypedStorage") => Name::Untyped,
        ("torch", "FloatStorage") => Name::Storage(DType::F32),
        ("torch", "DoubleStorage") => Name::Storage(DType::F64),
        ("torch", "HalfStorage") => Name::Storage(DType::F16),
        ("torch", "BFloat16Storage") => Name::Storage(DType::BF16),
        ("torch", "LongStorage") => Name::Storage(DType::I64),
        ("torch", "IntStorage") => Name::Storage(DType::I32),
        ("torch", "ShortStorage") => Name::Storage(DType::I16),
        ("torch", "CharStorage") => Name::Storage(DType::I8),
        ("torch", "ByteStorage") => Name::Storage(DType::U8),
        ("torch", "BoolStorage") => Name::Storage(DType::Bool),
        _ => return None,
    })
}

/// Bytes that may still be made.
#[derive(Debug)]
pub(super) struct Room(pub(super) u64);

impl Room {
    /// Takes so many of them.
    ///
    /// # Errors
    /// There are fewer.
    pub(super) fn take<R>(&mut self, input: &Input<R>, bytes: usize) -> Result<()> {
        let Some(left) = self.0.checked_sub(bytes as u64) else {
            return Err(input.fail("the pickle makes more than a file of its size can want"));
        };
        self.0 = left;
        Ok(())
    }
}

/// What a program left: all values, which of them is the result, and what there was not.
pub(super) struct Made<R> {
    pub(super) values: Vec<Value>,
    pub(super) top: ValueId,
    pub(super) input: Input<R>,
    pub(super) room: Room,
}

/// A program and what it has made so far.
pub(super) struct Machine<R> {
    input: Input<R>,
    room: Room,
    values: Vec<Value>,
    stack: Vec<ValueId>,
    /// Where the stack ended at each mark.
    marks: Vec<usize>,
    memo: HashMap<u32, ValueId>,
}

impl<R: Read> Machine<R> {
    /// The program is what comes next in the input, to its end or its stop.
    pub(super) fn new(input: Input<R>, room: Room) -> Self {
        Machine { input, room, values: Vec::new(), stack: Vec::new(), marks: Vec::new(), memo: HashMap::new() }
    }

    /// Runs to the stop.
    pub(super) fn run(mut self) -> Result<Made<R>> {
        loop {
            let [code] = self.input.array("an instruction")?;
            if code == b'.' {
                let top = self.pop()?;
                return Ok(Made { values: self.values, top, input: self.input, room: self.room });
            }
            self.step(code)?;
        }
    }

    fn fail<T>(&self, why: impl Into<String>) -> Result<T> {
        Err(self.input.fail(why))
    }

    fn push(&mut self, value: Value) -> Result<()> {
        self.room.take(&self.input, size_of::<Value>() + value.bytes_beside())?;
        let Ok(id) = ValueId::try_from(self.values.len()) else { return self.fail("the pickle makes 2^32 values") };
        self.values.try_reserve(1).map_err(|_| self.input.fail(NO_MEMORY))?;
        self.values.push(value);
        self.put(id)
    }

    /// A value comes to the stack, perhaps once more.
    fn put(&mut self, id: ValueId) -> Result<()> {
        self.room.take(&self.input, size_of::<ValueId>())?;
        self.stack.try_reserve(1).map_err(|_| self.input.fail(NO_MEMORY))?;
        self.stack.push(id);
        Ok(())
    }

    fn mark(&mut self) -> Result<()> {
        self.room.take(&self.input, size_of::<usize>())?;
        self.marks.try_reserve(1).map_err(|_| self.input.fail(NO_MEMORY))?;
        self.marks.push(self.stack.len());
        Ok(())
    }

    fn pop(&mut self) -> Result<ValueId> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.pop() {
            Some(id) if self.stack.len() >= floor => Ok(id),
            _ => self.fail("the pickle takes a value that is not there"),
        }
    }

    fn since_mark(&mut self) -> Result<Vec<ValueId>> {
        let Some(mark) = self.marks.pop().filter(|&mark| mark <= self.stack.len()) else {
            return self.fail("the pickle goes back to a mark that is not there");
        };
        // No more room than they need, which `split_off` does not promise.
        let mut all = Vec::new();
        all.try_reserve_exact(self.stack.len() - mark).map_err(|_| self.input.fail(NO_MEMORY))?;
        all.extend(self.stack.drain(mark..));
        Ok(all)
    }

    fn value(&self, id: ValueId) -> &Value {
        &self.values[id as usize]
    }

    fn text(&mut self, bytes: u64) -> Result<()> {
        let text = String::from_utf8(self.input.bytes(bytes, "a text")?);
        match text {
            Ok(text) => self.push(Value::Text(text)),
            Err(_) => self.fail("a text is not UTF-8"),
        }
    }

    /// A text that ends with its line.
    fn line(&mut self) -> Result<String> {
        let mut all = Vec::new();
        loop {
            match self.input.array("a line")? {
                [b'\n'] => break,
                [_] if all.len() >= NAME_BYTES_MAX => return self.fail("a name of more than 1000 bytes"),
                [byte] => all.push(byte),
            }
        }
        String::from_utf8(all).or_else(|_| self.fail("a name is not UTF-8"))
    }

    fn name(&mut self, module: &str, name: &str) -> Result<()> {
        match known(module, name) {
            Some(name) => self.push(Value::Name(name)),
            // A dtype.
            None if module == "torch" && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()) => {
                self.push(Value::Other)
            }
            None => self.fail(format!(
                "the pickle wants `{}.{}`; a file of weights needs tensors, dicts, lists and numbers only: save a \
                 state_dict",
                module.escape_debug(),
                name.escape_debug()
            )),
        }
    }

    fn number<const N: usize>(&mut self) -> Result<u64> {
        let bytes: [u8; N] = self.input.array("a number")?;
        Ok(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    /// An integer of as many bytes as the program says, the lowest first.
    fn long(&mut self) -> Result<()> {
        let count = self.number::<1>()?;
        let bytes = self.input.bytes(count, "an integer")?;
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let fill = if negative { u64::MAX } else { 0 };
        // An integer of more bytes is nothing that sizes are made of.
        let value = match bytes.len() {
            0..=8 => Value::Int(bytes.iter().rev().fold(fill, |number, &byte| number << 8 | u64::from(byte)) as i64),
            _ => Value::Other,
        };
        self.push(value)
    }

    fn remember(&mut self, place: u64) -> Result<()> {
        let Some(&id) = self.stack.last() else {
            return self.fail("the pickle remembers a value that is not there");
        };
        // A table is half empty.
        self.room.take(&self.input, 2 * size_of::<(u32, ValueId)>())?;
        self.memo.try_reserve(1).map_err(|_| self.input.fail(NO_MEMORY))?;
        self.memo.insert(place as u32, id);
        Ok(())
    }

    fn recall(&mut self, place: u64) -> Result<()> {
        match self.memo.get(&(place as u32)) {
            Some(&id) => self.put(id),
            None => self.fail("the pickle recalls a value that it did not remember"),
        }
    }

    fn step(&mut self, code: u8) -> Result<()> {
        match code {
            0x80 => drop(self.number::<1>()?),
            0x95 => drop(self.number::<8>()?),
            b'(' => self.mark()?,
            b'N' => self.push(Value::Nothing)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'K' => self.number::<1>().and_then(|n| self.push(Value::Int(n as i64)))?,
            b'M' => self.number::<2>().and_then(|n| self.push(Value::Int(n as i64)))?,
            b'J' => self.number::<4>().and_then(|n| self.push(Value::Int(i64::from(n as u32 as i32))))?,
            b'G' => self.number::<8>().and_then(|_| self.push(Value::Other))?,
            0x8a => self.long()?,
            b'X' | b'T' => self.number::<4>().and_then(|bytes| self.text(bytes))?,
            0x8c | b'U' => self.number::<1>().and_then(|bytes| self.text(bytes))?,
            0x8d => self.number::<8>().and_then(|bytes| self.text(bytes))?,
            b'C' => self.number::<1>().and_then(|bytes| self.skip(bytes))?,
            b'B' => self.number::<4>().and_then(|bytes| self.skip(bytes))?,
            b'q' => self.number::<1>().and_then(|place| self.remember(place))?,
            b'r' => self.number::<4>().and_then(|place| self.remember(place))?,
            0x94 => self.remember(self.memo.len() as u64)?,
            b'h' => self.number::<1>().and_then(|place| self.recall(place))?,
            b'j' => self.number::<4>().and_then(|place| self.recall(place))?,
            b'0' => drop(self.pop()?),
            b'1' => drop(self.since_mark()?),
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.name(&module, &name)?;
            }
            0x93 => self.name_on_the_stack()?,
            b'Q' => self.storage()?,
            b'R' | 0x81 => self.call()?,
            b'b' => drop(self.pop()?),
            _ => self.collect(code)?,
        }
        Ok(())
    }

    fn skip(&mut self, bytes: u64) -> Result<()> {
        self.input.bytes(bytes, "bytes")?;
        self.push(Value::Other)
    }

    fn name_on_the_stack(&mut self) -> Result<()> {
        let (name, module) = (self.pop()?, self.pop()?);
        let text = |id: ValueId| match self.value(id) {
            Value::Text(text) if text.len() <= NAME_BYTES_MAX => Value::Text(text.clone()),
            _ => Value::Other,
        };
        match (text(module), text(name)) {
            (Value::Text(module), Value::Text(name)) => self.name(&module, &name),
            _ => self.fail("the pickle wants a name that is no text"),
        }
    }

    /// The instructions that put values together.
    fn collect(&mut self, code: u8) -> Result<()> {
        let take = |this: &mut Self, count: usize| {
            let mut all = (0..count).map(|_| this.pop()).collect::<Result<Vec<_>>>()?;
            all.reverse();
            Ok(all)
        };
        match code {
            b')' => self.push(Value::Tuple(Vec::new()))?,
            0x85..=0x87 => take(self, usize::from(code - 0x84)).and_then(|all| self.push(Value::Tuple(all)))?,
            b't' => self.since_mark().and_then(|all| self.push(Value::Tuple(all)))?,
            b']' | 0x8f => self.push(Value::List(Vec::new()))?,
            b'}' => self.push(Value::Dict(Vec::new()))?,
            b'a' => take(self, 1).and_then(|all| self.append(all))?,
            b'e' | 0x90 => self.since_mark().and_then(|all| self.append(all))?,
            b's' => take(self, 2).and_then(|all| self.insert(&all))?,
            b'u' => self.since_mark().and_then(|all| self.insert(&all))?,
            _ => return self.fail(format!("instruction 0x{code:02x} of pickles is not understood")),
        }
        Ok(())
    }

    fn last(&mut self) -> Result<ValueId> {
        let id = self.pop()?;
        self.stack.push(id);
        Ok(id)
    }

    fn append(&mut self, mut new: Vec<ValueId>) -> Result<()> {
        let to = self.last()?;
        self.room.take(&self.input, size_of_val(&new[..]))?;
        match &mut self.values[to as usize] {
            Value::List(all) => {
                all.try_reserve(new.len()).map_err(|_| self.input.fail(NO_MEMORY))?;
                all.append(&mut new);
            }
            Value::Other => {}
            _ => return self.fail("the pickle appends to what is no list"),
        }
        Ok(())
    }

    fn insert(&mut self, new: &[ValueId]) -> Result<()> {
        let to = self.last()?;
        self.room.take(&self.input, size_of_val(new))?;
        match &mut self.values[to as usize] {
            Value::Dict(all) => {
                all.try_reserve(new.len() / 2).map_err(|_| self.input.fail(NO_MEMORY))?;
                all.extend(new.chunks_exact(2).map(|pair| (pair[0], pair[1])));
            }
            Value::Other => {}
            _ => return self.fail("the pickle puts keys into what is no dict"),
        }
        Ok(())
    }

    /// `('storage', type, key, location, count)`.
    fn storage(&mut self) -> Result<()> {
        let id = self.pop()?;
        let Value::Tuple(parts) = self.value(id) else { return self.fail("a storage is described by no tuple") };
        let parts: Vec<&Value> = parts.iter().map(|&id| self.value(id)).collect();
        let storage = match parts[..] {
            [Value::Text(what), Value::Name(name), Value::Text(key), _, Value::Int(count)]
                if what == "storage" && key.len() <= NAME_BYTES_MAX =>
            {
                let dtype = match name {
                    Name::Storage(dtype) => Some(Some(*dtype)),
                    Name::Untyped => Some(None),
                    _ => None,
                };
                let count = u64::try_from(*count).ok();
                dtype.zip(count).map(|(dtype, count)| Value::Storage(dtype, key.clone(), count))
            }
            _ => None,
        };
        match storage {
            Some(storage) => self.push(storage),
            None => self.fail("a storage is not described by its type, key and number of elements"),
        }
    }

    fn call(&mut self) -> Result<()> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let (Value::Name(name), Value::Tuple(parts)) = (self.value(function), self.value(arguments)) else {
            return self.fail("the pickle calls what is no function, or with what is no tuple");
        };
        if parts.len() > ARGUMENTS_MAX {
            return self.fail(format!("a call with {} arguments", parts.len()));
        }
        let (name, parts) = (*name, parts.clone());
        self.called(name, &parts)
    }

    fn called(&mut self, name: Name, parts: &[ValueId]) -> Result<()> {
        match (name, parts) {
            (Name::FromType, &[function, _, arguments, ..]) => {
                let (Value::Name(name), Value::Tuple(parts)) = (self.value(function), self.value(arguments)) else {
                    return self.fail("a tensor of a type is made by no function");
                };
                if *name == Name::FromType || parts.len() > ARGUMENTS_MAX {
                    return self.fail("a tensor of a type is made by no function of tensors");
                }
                let (name, parts) = (*name, parts.clone());
                self.called(name, &parts)
            }
            (Name::Dict, _) => self.push(Value::Dict(Vec::new())),
            (Name::List, []) => self.push(Value::List(Vec::new())),
            (Name::List, [first, ..]) => self.put(*first),
            (Name::Parameter, [tensor, ..]) if matches!(self.value(*tensor), Value::Tensor(_)) => self.put(*tensor),
            (Name::Tensor | Name::TypedTensor, &[storage, offset, sizes, strides, ref rest @ ..]) => {
                let dtype = match (name, rest.get(2).map(|&id| self.value(id))) {
                    (Name::TypedTensor, Some(Value::Name(Name::DType(dtype)))) => Some(*dtype),
                    (Name::TypedTensor, _) => return self.fail("a tensor of no dtype that can be read"),
                    _ => None,
                };
                match self.view(storage, dtype, offset, [sizes, strides]) {
                    Some(view) => self.push(Value::Tensor(view)),
                    None => self.fail("a tensor is not described by a storage, an offset, sizes and strides"),
                }
            }
            (Name::Harmless, _) => self.push(Value::Other),
            _ => self.fail("the pickle calls a function with other arguments than it takes"),
        }
    }

    fn view(
        &self,
        storage: ValueId,
        dtype: Option<DType>,
        offset: ValueId,
        [sizes, strides]: [ValueId; 2],
    ) -> Option<StorageView> {
        let int = |id: ValueId| match self.value(id) {
            Value::Int(number) => Some(*number),
            _ => None,
        };
        let ints = |id: ValueId| match self.value(id) {
            Value::Tuple(all) | Value::List(all) if all.len() <= ARGUMENTS_MAX => {
                all.iter().map(|&id| int(id)).collect::<Option<Vec<i64>>>()
            }
            _ => None,
        };
        matches!(self.value(storage), Value::Storage(..)).then_some(())?;
        let (dims, strides) = (ints(sizes)?, ints(strides)?);
        (dims.len() == strides.len()).then_some(StorageView { storage, dtype, offset: int(offset)?, dims, strides })
    }
}
