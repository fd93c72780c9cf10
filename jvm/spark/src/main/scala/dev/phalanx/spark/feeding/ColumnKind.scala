package dev.phalanx.spark.feeding

/** What the values of a column are to the core, by number: `Kind` of `rust/data/src/row_hash/column.rs`. */
private[feeding] object ColumnKind extends Enumeration {
  val Bool, Byte, Short, Int, Long, Float, Double = Value
  val ShortDecimal, LongDecimal, Bytes, WideBytes, List, Map, Struct = Value
}
