//! Settings as JSON and back, in the form that `serde` gives structs and enums: `{"n_out": 4}`, `"Relu"`,
//! `{"LeakyRelu": 0.01}`, `{"Step": {"decay": 0.5, "step": 2}}`.
//!
//! Written out by macros, since derive macros cost every build of the library more than all of this. What is read is
//! checked field by field: each has to be there, but for those that are optional, and nothing else may.

use ndgc::{DType, Error, Result};
use serde_json::{Map, Number, Value};

/// A setting that is written and read.
pub(super) trait Json: Sized {
    fn write(&self) -> Value;
    fn read(at: &At<'_>) -> Result<Self>;

    /// What it is where it is not written.
    fn absent() -> Option<Self> {
        None
    }
}

/// A value, and where it is.
pub(super) struct At<'v> {
    path: String,
    value: &'v Value,
}

impl<'v> At<'v> {
    pub(super) fn top(value: &'v Value) -> Self {
        At { path: String::new(), value }
    }

    fn below(&self, name: &str, value: &'v Value) -> Self {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        At { path, value }
    }

    /// An error that names the place.
    pub(super) fn wrong(&self, expected: &str) -> Error {
        let found: String = self.value.to_string().chars().take(40).collect();
        refuse(format!("`{}` is {found}; it must be {expected}", self.path))
    }

    pub(super) fn fields(&self) -> Result<Fields<'v>> {
        let map = self.value.as_object().ok_or_else(|| self.wrong("an object"))?;
        Ok(Fields { at: At { path: self.path.clone(), value: self.value }, map, taken: Vec::new() })
    }

    pub(super) fn text(&self) -> Result<&'v str> {
        self.value.as_str().ok_or_else(|| self.wrong("a text"))
    }

    /// The name of a variant, and what it holds.
    pub(super) fn variant(&self) -> Result<(&'v str, Option<At<'v>>)> {
        match self.value {
            Value::String(name) => Ok((name, None)),
            Value::Object(map) if map.len() == 1 => {
                let one = map.iter().next().map(|(name, value)| (name.as_str(), Some(self.below(name, value))));
                one.ok_or_else(|| self.wrong("a variant"))
            }
            _ => Err(self.wrong("the name of a variant, or an object with it as the only key")),
        }
    }
}

/// The fields of an object, each to be taken once.
pub(super) struct Fields<'v> {
    at: At<'v>,
    map: &'v Map<String, Value>,
    taken: Vec<&'static str>,
}

impl<'v> Fields<'v> {
    pub(super) fn take<T: Json>(&mut self, name: &'static str) -> Result<T> {
        match self.find(name) {
            Ok(at) => T::read(&at),
            Err(missing) => T::absent().ok_or(missing),
        }
    }

    fn find(&mut self, name: &'static str) -> Result<At<'v>> {
        self.taken.push(name);
        match self.map.get(name) {
            Some(value) => Ok(self.at.below(name, value)),
            None => Err(refuse(format!("`{}` is not there", self.path_of(name)))),
        }
    }

    /// Refuses what nobody took.
    pub(super) fn end(self) -> Result<()> {
        match self.map.keys().find(|key| !self.taken.contains(&key.as_str())) {
            Some(key) => {
                Err(refuse(format!("`{}` is none of the fields {}", self.path_of(key), self.taken.join(", "))))
            }
            None => Ok(()),
        }
    }

    fn path_of(&self, name: &str) -> String {
        self.at.below(name, self.at.value).path
    }
}

fn refuse(why: String) -> Error {
    Error::file(None, None, why)
}

/// An object without the fields that are null: those are optional. It takes the values.
pub(super) fn object(fields: &mut [(&'static str, Value)]) -> Value {
    let mut all = Map::new();
    for (name, value) in fields.iter_mut().filter(|(_, value)| !value.is_null()) {
        all.insert((*name).to_owned(), value.take());
    }
    Value::Object(all)
}

/// `impl Json` of structs: by the names of their fields, or with names for the fields of tuples.
macro_rules! json_struct {
    ($type:ty { $($field:ident),+ }) => { json_struct!($type { $($field = $field),+ }); };
    ($type:ty { $($name:ident = $field:tt),* }) => {
        impl $crate::train::network::json::Json for $type {
            fn write(&self) -> serde_json::Value {
                $crate::train::network::json::object(&mut [
                    $((stringify!($name), $crate::train::network::json::Json::write(&self.$field))),*
                ])
            }

            fn read(at: &$crate::train::network::json::At<'_>) -> ndgc::Result<Self> {
                #[allow(unused_mut)] // some structs have no field
                let mut fields = at.fields()?;
                let made = Self { $($field: fields.take(stringify!($name))?),* };
                fields.end()?;
                Ok(made)
            }
        }
    };
}

/// `impl Json` of enums: variants that hold nothing, one value, or fields.
macro_rules! json_enum {
    ($type:ty { $($unit:ident),* $(,)? $(; $($one:ident),* $(; $($many:ident { $($field:ident),* }),*)?)? }) => {
        impl $crate::train::network::json::Json for $type {
            fn write(&self) -> serde_json::Value {
                match self {
                    $(Self::$unit => stringify!($unit).into(),)*
                    $($(Self::$one(value) => {
                        let value = $crate::train::network::json::Json::write(value);
                        $crate::train::network::json::object(&mut [(stringify!($one), value)])
                    })*)?
                    $($($(Self::$many { $($field),* } => {
                        let fields = $crate::train::network::json::object(&mut [
                            $((stringify!($field), $crate::train::network::json::Json::write($field))),*
                        ]);
                        $crate::train::network::json::object(&mut [(stringify!($many), fields)])
                    })*)?)?
                }
            }

            fn read(at: &$crate::train::network::json::At<'_>) -> ndgc::Result<Self> {
                let (name, held) = at.variant()?;
                $(if name == stringify!($unit) && held.is_none() {
                    return Ok(Self::$unit);
                })*
                $($(if let Some(held) = held.as_ref().filter(|_| name == stringify!($one)) {
                    return $crate::train::network::json::Json::read(held).map(Self::$one);
                })*)?
                $($($(if let Some(held) = held.as_ref().filter(|_| name == stringify!($many)) {
                    let mut fields = held.fields()?;
                    let made = Self::$many { $($field: fields.take(stringify!($field))?),* };
                    fields.end()?;
                    return Ok(made);
                })*)?)?
                Err(at.wrong(concat!("one of", $(" ", stringify!($unit),)* $($(" ", stringify!($one),)* $($(" ", stringify!($many)),*)?)?)))
            }
        }
    };
}

pub(super) use {json_enum, json_struct};

impl<T: Json> Json for Option<T> {
    fn write(&self) -> Value {
        self.as_ref().map_or(Value::Null, T::write)
    }

    fn read(at: &At<'_>) -> Result<Self> {
        if at.value.is_null() { Ok(None) } else { T::read(at).map(Some) }
    }

    fn absent() -> Option<Self> {
        Some(None)
    }
}

impl<T: Json> Json for Vec<T> {
    fn write(&self) -> Value {
        self.iter().map(T::write).collect()
    }

    fn read(at: &At<'_>) -> Result<Self> {
        let mut all = Vec::new();
        for (i, value) in at.value.as_array().ok_or_else(|| at.wrong("a list"))?.iter().enumerate() {
            all.push(T::read(&at.below(&i.to_string(), value))?);
        }
        Ok(all)
    }
}

impl<A: Json, B: Json> Json for (A, B) {
    fn write(&self) -> Value {
        Value::Array(vec![self.0.write(), self.1.write()])
    }

    fn read(at: &At<'_>) -> Result<Self> {
        match at.value.as_array().map(Vec::as_slice) {
            Some([a, b]) => Ok((A::read(&at.below("0", a))?, B::read(&at.below("1", b))?)),
            _ => Err(at.wrong("a list of two")),
        }
    }
}

impl Json for f64 {
    /// A number, if `serde_json` reads it back to the last bit; it does so for all only with a feature that takes time.
    /// Else as text.
    fn write(&self) -> Value {
        let text = format!("{self:?}");
        let is_read = |found: f64| found.to_bits() == self.to_bits();
        match Number::from_f64(*self).filter(|_| serde_json::from_str(&text).is_ok_and(is_read)) {
            Some(number) => Value::Number(number),
            None => Value::String(text),
        }
    }

    fn read(at: &At<'_>) -> Result<Self> {
        let found = at.value.as_f64().or_else(|| at.value.as_str()?.parse().ok());
        found.ok_or_else(|| at.wrong("a number"))
    }
}

impl Json for u64 {
    fn write(&self) -> Value {
        Value::from(*self)
    }

    fn read(at: &At<'_>) -> Result<Self> {
        at.value.as_u64().ok_or_else(|| at.wrong("a whole number of 0 or more"))
    }
}

impl Json for usize {
    fn write(&self) -> Value {
        Value::from(*self)
    }

    fn read(at: &At<'_>) -> Result<Self> {
        let found = at.value.as_u64().and_then(|size| usize::try_from(size).ok());
        found.ok_or_else(|| at.wrong("a whole number of 0 or more"))
    }
}

impl Json for bool {
    fn write(&self) -> Value {
        Value::from(*self)
    }

    fn read(at: &At<'_>) -> Result<Self> {
        at.value.as_bool().ok_or_else(|| at.wrong("true or false"))
    }
}

impl Json for String {
    fn write(&self) -> Value {
        Value::from(self.as_str())
    }

    fn read(at: &At<'_>) -> Result<Self> {
        at.text().map(str::to_owned)
    }
}

impl Json for DType {
    fn write(&self) -> Value {
        Value::from(self.as_str())
    }

    fn read(at: &At<'_>) -> Result<Self> {
        let found = at.text()?.parse().ok().filter(|dtype: &DType| dtype.is_float());
        found.ok_or_else(|| at.wrong("a dtype of floats, such as f32"))
    }
}
