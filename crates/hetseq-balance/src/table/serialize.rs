//! Serialized form of a cost table: a list of points, or tokens per second if nothing was measured.
//!
//! Human-readable formats distinguish the two by type; binary formats hold both. Input is checked
//! as in [`CostTable::new`].

use std::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{CostPoint, CostTable};

impl Serialize for CostTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            false => (&self.points, self.tokens_per_s).serialize(serializer),
            true if self.is_measured() => self.points.serialize(serializer),
            true => self.tokens_per_s.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for CostTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return deserializer.deserialize_any(PointsOrSpeed);
        }
        let (points, tokens_per_s) = <(Vec<CostPoint>, f64)>::deserialize(deserializer)?;
        if points.is_empty() { from_speed(tokens_per_s) } else { CostTable::new(points).map_err(Error::custom) }
    }
}

struct PointsOrSpeed;

impl<'de> Visitor<'de> for PointsOrSpeed {
    type Value = CostTable;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of measured points, or a number of tokens per second")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<CostTable, A::Error> {
        let mut points = Vec::new();
        while let Some(point) = list.next_element()? {
            points.push(point);
        }
        CostTable::new(points).map_err(Error::custom)
    }

    fn visit_f64<E: Error>(self, tokens_per_s: f64) -> Result<CostTable, E> {
        from_speed(tokens_per_s)
    }

    fn visit_u64<E: Error>(self, tokens_per_s: u64) -> Result<CostTable, E> {
        from_speed(tokens_per_s as f64)
    }

    fn visit_i64<E: Error>(self, tokens_per_s: i64) -> Result<CostTable, E> {
        from_speed(tokens_per_s as f64)
    }
}

fn from_speed<E: Error>(tokens_per_s: f64) -> Result<CostTable, E> {
    if tokens_per_s > 0.0 && tokens_per_s.is_finite() {
        return Ok(CostTable::proportional(tokens_per_s));
    }
    Err(E::custom(format!("the speed is {tokens_per_s} tokens per second; it must be a positive number")))
}
