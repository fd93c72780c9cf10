package dev.phalanx.spark.support

import org.scalatest.Tag

/** Leaves a test to `make test-all`, since another test would notice the same defects: TEST-16 of
  * tests/support/tiers.py. Beside each it says where that one is.
  */
object Whole extends Tag("whole")
