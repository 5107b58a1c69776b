//! Activations in configurations: serde reads and writes them as candle's, by lowercase names. Written out, so that
//! nobody compiles derive macros for it.

use std::fmt;

use serde_core::de::{self, Deserialize, Deserializer, EnumAccess, VariantAccess, Visitor};
use serde_core::ser::{Serialize, Serializer};

use crate::nn::activation::Activation;

const NAME: &str = "Activation";

/// In the order of the enum, which is that of formats without names: the name, the one that other programs write, and
/// the activation.
const ROWS: [(&str, &str, Activation); 15] = [
    ("gelu", "gelu", Activation::Gelu),
    ("newgelu", "gelu_new", Activation::NewGelu),
    ("relu", "relu", Activation::Relu),
    ("relu2", "relu2", Activation::Relu2),
    ("relu6", "relu6", Activation::Relu6),
    ("silu", "silu", Activation::Silu),
    ("sigmoid", "sigmoid", Activation::Sigmoid),
    ("hardsigmoid", "hardsigmoid", Activation::HardSigmoid),
    ("swiglu", "swiglu", Activation::Swiglu),
    ("swish", "swish", Activation::Swish),
    ("mish", "mish", Activation::Mish),
    ("hardswish", "hardswish", Activation::HardSwish),
    ("elu", "elu", Activation::Elu(0.0)),
    ("leakyrelu", "leakyrelu", Activation::LeakyRelu(0.0)),
    ("gelupytorchtanh", "gelu_pytorch_tanh", Activation::GeluPytorchTanh),
];

const NAMES: [&str; 15] = {
    let mut names = [""; 15];
    let mut i = 0;
    while i < names.len() {
        names[i] = ROWS[i].0;
        i += 1;
    }
    names
};

/// `"relu"`; with a number, `{"elu": 1.0}`.
impl Serialize for Activation {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let same = |row: &Activation| std::mem::discriminant(row) == std::mem::discriminant(self);
        let row = ROWS.iter().position(|row| same(&row.2)).expect("every activation has a row");
        match self {
            Activation::Elu(number) | Activation::LeakyRelu(number) => {
                to.serialize_newtype_variant(NAME, row as u32, NAMES[row], number)
            }
            _ => to.serialize_unit_variant(NAME, row as u32, NAMES[row]),
        }
    }
}

/// From a name as it is written, or `gelu_new`, `gelu_pytorch_tanh`.
impl<'de> Deserialize<'de> for Activation {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_enum(NAME, &NAMES, ActivationVisitor)
    }
}

struct ActivationVisitor;

impl<'de> Visitor<'de> for ActivationVisitor {
    type Value = Activation;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an activation")
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<Activation, A::Error> {
        let (NamedActivation(row), rest) = data.variant()?;
        match row {
            Activation::Elu(_) => rest.newtype_variant().map(Activation::Elu),
            Activation::LeakyRelu(_) => rest.newtype_variant().map(Activation::LeakyRelu),
            _ => rest.unit_variant().map(|()| row),
        }
    }
}

/// The activation of a name, without its number.
struct NamedActivation(Activation);

impl<'de> Deserialize<'de> for NamedActivation {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_identifier(NamedActivationVisitor)
    }
}

struct NamedActivationVisitor;

impl Visitor<'_> for NamedActivationVisitor {
    type Value = NamedActivation;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of an activation")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<NamedActivation, E> {
        let found = ROWS.iter().find(|row| name == row.0 || name == row.1);
        found.map(|row| NamedActivation(row.2)).ok_or_else(|| E::unknown_variant(name, &NAMES))
    }

    fn visit_bytes<E: de::Error>(self, name: &[u8]) -> Result<NamedActivation, E> {
        self.visit_str(&String::from_utf8_lossy(name))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<NamedActivation, E> {
        let found = usize::try_from(number).ok().and_then(|number| ROWS.get(number));
        let expected = "the number of an activation, below 15";
        found
            .map(|row| NamedActivation(row.2))
            .ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(number), &expected))
    }
}
