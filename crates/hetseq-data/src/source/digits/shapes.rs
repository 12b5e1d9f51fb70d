//! Shapes of the ten digits, as strokes in the unit square: x points right, y points down, both
//! about 0 to 1.
//!
//! Some digits have two common forms. Used by `digits` only.

use super::pen::PenPoint;

type Stroke = Vec<PenPoint>;

/// Returns the strokes of `label`. `choice` selects the form.
pub(super) fn strokes(label: u8, choice: u32) -> Vec<Stroke> {
    let second_form = choice & 1 == 1;
    match label {
        0 => vec![arc((0.5, 0.5), (0.42, 0.5), 0.0, 360.0)],
        1 if second_form => vec![path(&[(0.25, 0.25), (0.55, 0.0), (0.55, 1.0)])],
        1 => vec![path(&[(0.5, 0.0), (0.5, 1.0)])],
        2 => vec![joined(&[
            arc((0.5, 0.28), (0.42, 0.28), 190.0, 390.0),
            path(&[(0.84, 0.46), (0.08, 1.0), (0.95, 1.0)]),
        ])],
        3 => vec![joined(&[
            arc((0.45, 0.26), (0.42, 0.26), 215.0, 450.0),
            arc((0.45, 0.75), (0.47, 0.25), 270.0, 505.0),
        ])],
        4 if second_form => {
            vec![path(&[(0.2, 0.0), (0.12, 0.58), (0.92, 0.58)]), path(&[(0.75, 0.1), (0.7, 1.0)])]
        }
        4 => vec![path(&[(0.72, 1.0), (0.72, 0.0), (0.05, 0.66), (0.98, 0.66)])],
        5 => vec![
            joined(&[path(&[(0.2, 0.02), (0.14, 0.45)]), arc((0.46, 0.68), (0.44, 0.32), 225.0, 515.0)]),
            path(&[(0.2, 0.02), (0.88, 0.0)]),
        ],
        6 => vec![joined(&[
            path(&[(0.75, 0.0), (0.42, 0.2), (0.18, 0.48)]),
            arc((0.5, 0.72), (0.38, 0.28), 180.0, -180.0),
        ])],
        7 if second_form => {
            vec![path(&[(0.06, 0.04), (0.94, 0.0), (0.4, 1.0)]), path(&[(0.3, 0.52), (0.86, 0.5)])]
        }
        7 => vec![path(&[(0.06, 0.04), (0.94, 0.0), (0.4, 1.0)])],
        8 => vec![joined(&[arc((0.5, 0.25), (0.36, 0.25), 90.0, 450.0), arc((0.5, 0.75), (0.44, 0.25), 270.0, 630.0)])],
        _ => {
            vec![joined(&[arc((0.48, 0.3), (0.4, 0.3), 0.0, -360.0), path(&[(0.88, 0.3), (0.82, 0.68), (0.62, 1.0)])])]
        }
    }
}

/// Points on an arc of an ellipse. Degrees run clockwise from the right, because y points down.
fn arc(middle: (f32, f32), radius: (f32, f32), from_degrees: f32, to_degrees: f32) -> Stroke {
    const DEGREES_PER_PIECE: f32 = 24.0;
    let pieces = ((to_degrees - from_degrees).abs() / DEGREES_PER_PIECE).ceil().max(1.0);
    let point = |piece: u32| {
        let degrees = from_degrees + (to_degrees - from_degrees) * piece as f32 / pieces;
        let radians = degrees * (std::f32::consts::PI / 180.0);
        PenPoint { x: middle.0 + radius.0 * libm::cosf(radians), y: middle.1 + radius.1 * libm::sinf(radians) }
    };
    (0..=pieces as u32).map(point).collect()
}

/// A path through corners, with points in between for the wobble.
fn path(corners: &[(f32, f32)]) -> Stroke {
    const PIECES: u32 = 3;
    let mut stroke = Vec::new();
    for ends in corners.windows(2) {
        let ((from_x, from_y), (to_x, to_y)) = (ends[0], ends[1]);
        for piece in u32::from(!stroke.is_empty())..=PIECES {
            let part = piece as f32 / PIECES as f32;
            stroke.push(PenPoint { x: from_x + (to_x - from_x) * part, y: from_y + (to_y - from_y) * part });
        }
    }
    stroke
}

fn joined(parts: &[Stroke]) -> Stroke {
    parts.concat()
}
