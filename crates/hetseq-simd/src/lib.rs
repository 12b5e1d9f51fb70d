//! Loops that are compiled for several instruction sets. Used by the kernels and the optimizers.
//!
//! Their results are the same with all: Rust never fuses a product with a sum, and an order of
//! additions is that of the source. So code must not use `mul_add` here.

#[doc(hidden)]
pub use pulp;

/// Defines a function that runs with the widest vectors that this CPU has. Functions that it calls
/// must be `#[inline(always)]`, or they are compiled for the narrowest.
///
/// ```
/// hetseq_simd::vectorised! {
///     fn scale(values: &mut [f32], factor: f32) {
///         values.iter_mut().for_each(|value| *value *= factor);
///     }
/// }
/// let mut values = [1.0, 2.0];
/// scale(&mut values, 3.0);
/// assert_eq!(values, [3.0, 6.0]);
/// ```
// A closure in place of the type would be simpler, but is not always inlined.
#[macro_export]
macro_rules! vectorised {
    ($(
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $output:ty)? $body:block
    )*) => {$(
        $(#[$attribute])*
        $visibility fn $name($($argument: $type),*) $(-> $output)? {
            struct Body<T>(T);
            impl $crate::pulp::NullaryFnOnce for Body<($($type,)*)> {
                #[allow(unused_parens)]
                type Output = ($($output)?);

                #[inline(always)]
                fn call(self) -> Self::Output {
                    let Body(($($argument,)*)) = self;
                    $body
                }
            }
            $crate::pulp::Arch::new().dispatch(Body(($($argument,)*)))
        }
    )*};
}
