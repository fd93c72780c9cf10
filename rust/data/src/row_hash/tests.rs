use proptest::prelude::*;

use super::*;

/// A column's memory.
#[derive(Debug, Clone)]
struct Memory {
    kind: Kind,
    rows: usize,
    buffers: Vec<Vec<u8>>,
    below: Vec<Memory>,
}

impl Memory {
    fn describe<'a>(&'a self, to: &mut Vec<Described<'a>>) {
        let buffers = self.buffers.iter().map(Vec::as_slice).collect();
        to.push(Described { kind: self.kind, rows: self.rows, children: self.below.len(), buffers });
        self.below.iter().for_each(|column| column.describe(to));
    }
}

fn sums_of(columns: &[Memory]) -> Result<RowSums> {
    let mut described = Vec::new();
    columns.iter().for_each(|column| column.describe(&mut described));
    row_sums(&described)
}

fn bits(rows: &[bool]) -> Vec<u8> {
    rows.chunks(8).map(|eight| eight.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit))).collect()
}

/// Some value for each row, nulls where `nulls` says so, and arrays of some length, all from a few numbers.
fn column(kind: Kind, rows: usize, nulls: bool, below: &[(Kind, bool)], mut chance: u64) -> Memory {
    let mut next = || {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        chance >> 33
    };
    let valid: Vec<bool> = (0..rows).map(|_| !next().is_multiple_of(5)).collect();
    let mut ends = vec![0];
    for _ in 0..rows {
        ends.push(ends[ends.len() - 1] + (next() % 7) as i32);
    }
    let end = ends[rows] as usize;
    let narrow = ends.iter().flat_map(|end| end.to_ne_bytes()).collect();
    let wide = ends.iter().flat_map(|end| i64::from(*end).to_ne_bytes()).collect();
    let mut some = |bytes: usize| -> Vec<u8> {
        // Zeros, infinities and NaNs among them.
        (0..bytes.div_ceil(4))
            .flat_map(|_| {
                match next() % 8 {
                    0 => 0x8000_0000,
                    1 => 0,
                    2 => 0x7f80_0000,
                    3 => 0xffff_ffff,
                    _ => next() as u32,
                }
                .to_ne_bytes()
            })
            .take(bytes)
            .collect()
    };
    let values = match kind {
        Kind::Bool => vec![some(rows.div_ceil(8))],
        Kind::Byte => vec![some(rows)],
        Kind::Short => vec![some(2 * rows)],
        Kind::Int | Kind::Float => vec![some(4 * rows)],
        Kind::Long | Kind::Double => vec![some(8 * rows)],
        Kind::ShortDecimal | Kind::LongDecimal => vec![some(16 * rows)],
        Kind::Bytes => vec![narrow, some(end)],
        Kind::WideBytes => vec![wide, some(end)],
        Kind::List | Kind::Map => vec![narrow],
        Kind::Struct => vec![],
    };
    let below = match (kind, below) {
        (Kind::List, [(of, nulls), rest @ ..]) => vec![column(*of, end, *nulls, rest, chance)],
        (Kind::List, []) => vec![column(Kind::Float, end, false, &[], chance)],
        (Kind::Map, rest) => {
            let fields =
                vec![column(Kind::Int, end, false, &[], chance), column(Kind::List, end, true, rest, chance)];
            vec![Memory { kind: Kind::Struct, rows: end, buffers: vec![vec![]], below: fields }]
        }
        (Kind::Struct, rest) => {
            vec![column(Kind::Double, rows, true, &[], chance), column(Kind::List, rows, false, rest, chance)]
        }
        _ => vec![],
    };
    let valid = if nulls && rows > 0 { bits(&valid) } else { vec![] };
    Memory { kind, rows, buffers: [vec![valid], values].concat(), below }
}

fn any_kind() -> impl Strategy<Value = Kind> {
    (0..14usize).prop_map(|number| Kind::of(number).unwrap())
}

/// One row behind another, value by value.
fn plain(columns: &[Column<'_>], row: usize) -> u64 {
    let mut hash = columns.iter().fold(SEED, |hash, column| column.chain_one(row, hash).unwrap());
    for group in columns.chunks(FLAGS) {
        let flags =
            group.iter().enumerate().map(|(bit, column)| u64::from(!column.is_valid(row)) << bit).sum();
        hash = xxh64::long(flags, hash);
    }
    hash
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn rows_beside_each_other_hash_as_one_by_one(
        rows in prop_oneof![0..40usize, Just(ROWS), Just(ROWS + 1), Just(3 * ROWS - 7)],
        kinds in proptest::collection::vec(
            (any_kind(), any::<bool>(), proptest::collection::vec((any_kind(), any::<bool>()), 0..4), any::<u64>()),
            1..5,
        ),
        copies in prop_oneof![Just(1usize), Just(1), Just(1), Just(40)],
    ) {
        let rows = if copies > 1 { rows.min(40) } else { rows };
        let columns: Vec<_> = kinds
            .iter()
            .cycle()
            .take(kinds.len() * copies)
            .map(|(kind, nulls, below, chance)| column(*kind, rows, *nulls, below, *chance))
            .collect();
        let mut described = Vec::new();
        columns.iter().for_each(|column| column.describe(&mut described));
        let found = Column::all(&described).unwrap();
        let hashes: Vec<_> = (0..rows).map(|row| plain(&found, row)).collect();
        let mut expected = RowSums::default();
        expected.add(&hashes);
        prop_assert_eq!(sums_of(&columns).unwrap(), expected);
    }

    #[test]
    fn what_contradicts_itself_is_refused_and_never_read(
        kind in any_kind(),
        below in proptest::collection::vec((any_kind(), any::<bool>()), 0..3),
        chance: u64,
        rows in 1..30usize,
        which in any::<prop::sample::Index>(),
        lost in 1..9usize,
    ) {
        let mut memory = column(kind, rows, true, &below, chance);
        let mut described = Vec::new();
        memory.describe(&mut described);
        prop_assert!(row_sums(&described[..described.len() - 1]).is_err() || described.len() == 1);
        described[0].rows = usize::MAX;
        prop_assert!(row_sums(&described).is_err());
        let buffer = which.index(memory.buffers.len());
        let shorter = memory.buffers[buffer].len().saturating_sub(lost);
        // Text that is shorter than its ends is found out when it is read; no byte of validity is no validity.
        let is_needed = shorter > 0 || buffer > 0;
        let is_less = shorter < memory.buffers[buffer].len() && buffer < 2;
        memory.buffers[buffer].truncate(shorter);
        if is_needed && is_less {
            prop_assert!(sums_of(&[memory]).is_err());
        } else {
            let _ = sums_of(&[memory]);
        }
    }
}

#[test]
fn columns_of_different_length_or_beyond_any_depth_are_refused() {
    let of = |rows| column(Kind::Int, rows, false, &[], 1);
    assert!(sums_of(&[of(3), of(3)]).is_ok());
    assert!(sums_of(&[of(3), of(4)]).is_err());
    assert_eq!(sums_of(&[]).unwrap(), RowSums::default());
    let deep = |depth| {
        let list = |_| Described { kind: Kind::List, rows: 0, children: 1, buffers: vec![&[][..], &[0; 4]] };
        let last = Described { kind: Kind::Int, rows: 0, children: 0, buffers: vec![&[][..], &[]] };
        row_sums(&(0..depth).map(list).chain([last]).collect::<Vec<_>>())
    };
    assert!(deep(60).is_ok());
    assert!(deep(100_000).is_err());
}
