//! Tests of the public interface that the trainer uses. One binary, so that it links once.

#[cfg(test)]
mod forecast;
#[cfg(test)]
mod noise;
#[cfg(test)]
mod planner;
#[cfg(test)]
mod share;
#[cfg(test)]
mod simulate;
#[cfg(test)]
mod table;
