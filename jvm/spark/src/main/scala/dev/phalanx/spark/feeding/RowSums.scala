package dev.phalanx.spark.feeding

/** What the hashes of some rows that follow one another come to, where Spark has computed them.
  * `feeding/blocks/identity.py` says what that is good for.
  */
final private[feeding] class RowSums {
  import RowSums._

  private var sum = 0L
  private var polynomial = 0L

  def add(hash: Long): Unit = {
    sum += hash
    polynomial = reduced(times(polynomial, Base) + reduced((hash & Prime) + (hash >>> Bits)))
  }

  /** The sum of the hashes since the last call modulo 2^64, and `h1 B^(n-1) + ... + hn` modulo the prime. */
  def taken(): (Long, Long) = {
    val found = (sum, polynomial)
    sum = 0
    polynomial = 0
    found
  }
}

private[feeding] object RowSums {

  /** As `BASE` and `PRIME` in `feeding/blocks/write.py`. */
  val Base = 0x16a5f1d3c7b9e24dL
  private val Bits = 61
  val Prime: Long = (1L << Bits) - 1

  /** A product of two numbers below the prime, modulo the prime: 2^61 is 1. */
  private def times(one: Long, other: Long): Long = {
    val (high, low) = (Math.multiplyHigh(one, other), one * other)
    reduced((low & Prime) + ((low >>> Bits) | (high << (64 - Bits))))
  }

  private def reduced(number: Long): Long = if (number >= Prime) number - Prime else number
}
